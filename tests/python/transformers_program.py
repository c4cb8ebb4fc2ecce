"""What each rank of transformers_test.py does: models of transformers with random weights, on a ring and on one process."""

import harness
import ring_attention as ra
import torch
import transformers as t

SEQ = 61
COMMON = dict(vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=2, head_dim=16, max_position_embeddings=4096, attention_dropout=0.0, bos_token_id=None,
              eos_token_id=None, pad_token_id=None)
t.logging.set_verbosity_error()  # else it warns of a batch without attention_mask


def make(name, **more):
    torch.manual_seed(0)
    if name == "llama":
        return t.LlamaForCausalLM(t.LlamaConfig(**COMMON))
    if name == "qwen3":
        return t.Qwen3ForCausalLM(t.Qwen3Config(**COMMON, **more))
    if name == "mistral":  # a window in every layer
        return t.MistralForCausalLM(t.MistralConfig(**COMMON, sliding_window=20))
    if name == "gemma3":  # windows in 5 of 6 layers
        return t.Gemma3ForCausalLM(t.Gemma3TextConfig(**{**COMMON, "num_hidden_layers": 6}, sliding_window=20))
    if name == "gemma2":  # caps its scores
        return t.Gemma2ForCausalLM(t.Gemma2Config(**COMMON, sliding_window=20, attn_logit_softcapping=0.5))
    if name == "llama4":  # chunks in 3 of 4 layers, and a scale of queries that grows with their position in the other
        return t.Llama4ForCausalLM(t.Llama4TextConfig(
            **{**COMMON, "num_hidden_layers": 4}, intermediate_size_mlp=64, num_local_experts=2, attention_chunk_size=16,
            moe_layers=[1], **more))
    if name == "deepseek":  # v has fewer columns than k
        return t.DeepseekV3ForCausalLM(t.DeepseekV3Config(
            vocab_size=64, hidden_size=64, intermediate_size=64, moe_intermediate_size=32, num_hidden_layers=1,
            num_attention_heads=4, num_key_value_heads=4, n_routed_experts=4, n_group=1, topk_group=1, num_experts_per_tok=2))
    model = t.GptOssForCausalLM(t.GptOssConfig(**COMMON, num_local_experts=4, num_experts_per_tok=2, sliding_window=20))
    for layer in model.model.layers:  # sinks that matter
        torch.nn.init.normal_(layer.self_attn.sinks, std=2.0)
    return model


def alone(model, tokens, documents):
    """The logits, and the gradients of the loss, of one process: each document by itself."""
    model.set_attn_implementation("eager")
    pieces = [tokens[:, begin:end] for begin, end in zip(documents, documents[1:])]
    logits = [model(input_ids=piece, use_cache=False).logits for piece in pieces]
    sums = [torch.nn.functional.cross_entropy(x[0, :-1], piece[0, 1:], reduction="sum") for x, piece in zip(logits, pieces)]
    (sum(sums) / sum(piece.shape[1] - 1 for piece in pieces)).backward()
    return torch.cat([x.detach() for x in logits], 1)


def compare(name, documents, group, **more):
    """(The largest difference of logits, that of gradients, relative to the largest gradient of each parameter)."""
    from ring_attention.transformers import shard, sum_gradients

    tokens = torch.randint(0, 64, (1, SEQ), generator=torch.Generator().manual_seed(1))
    models = [make(name, **more), make(name, **more)]
    due = alone(models[0], tokens, documents)
    own = None if len(documents) == 2 else torch.tensor(documents, dtype=torch.int32)
    got = models[1](**shard(models[1], tokens, tokens, documents=own, group=group))
    got.loss.backward()
    sum_gradients(models[1], group=group)
    mine = ra.positions(SEQ, group=group)
    logits = float((got.logits - due[:, mine]).detach().abs().max())
    pairs = [(one.grad, other.grad) for one, other in zip(*(model.parameters() for model in models)) if one.grad is not None]
    return logits, max(float((one - other).abs().max() / one.abs().max().clamp_min(1e-30)) for one, other in pairs)


def models(rank, group):
    torch.set_num_threads(1)
    found = {}
    for name in ("llama", "qwen3", "mistral", "gemma2", "gemma3", "gptoss", "deepseek", "llama4"):
        for documents in ([0, SEQ], [0, 17, 18, SEQ]):
            found[f"{name} {documents}"] = compare(name, documents, group)
    found["llama4 with a temperature"] = compare("llama4", [0, SEQ], group, floor_scale=8, attn_scale=0.5)
    yield found


def dropouts(rank, group):
    """(Positions and logits of this rank, in training, with another seed, and in evaluation; the words of each layer's call.)"""
    from ring_attention import transformers as adapter

    calls, computed = [], adapter.ring_attention
    adapter.ring_attention = lambda *arrays, **words: (calls.append((words["dropout"], words["seed"])), computed(*arrays, **words))[1]
    tokens = torch.randint(0, 64, (1, SEQ), generator=torch.Generator().manual_seed(1))
    model, found = make("llama"), []
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.3
    for seed, trains in ((7, True), (8, True), (7, False)):
        model.train(trains)
        part = adapter.shard(model, tokens, seed=seed, group=group)
        calls.clear()  # those of the probe
        with torch.no_grad():
            found.append((model(**part).logits.numpy(), list(calls)))
    yield ra.positions(SEQ, group=group), found


def continued(name, group, prompt_length=37, again=5, batch=2, beams=None, cut=0, **words):
    """(Are the tokens of two turns of generate() those of one process?, the largest difference of their logits, all logits)."""
    from ring_attention.transformers import RingCache, shard

    tokens = torch.randint(0, 64, (batch, prompt_length + again), generator=torch.Generator().manual_seed(2))
    words = dict(max_new_tokens=10, return_dict_in_generate=True, output_logits=True, **words)
    results = []
    for ring in (False, True):
        model, prompt = make(name).eval(), tokens[:, :prompt_length]
        model.set_attn_implementation("eager")
        cache = RingCache() if ring else None
        if ring:
            with torch.no_grad():
                model(**shard(model, prompt[:, :-1], cache=cache, group=group))
            if beams:
                cache.batch_repeat_interleave(beams)
        turns = []
        for turn in range(1 if beams else 2):
            torch.manual_seed(3)
            turns.append(model.generate(prompt, **words, **({"num_beams": beams} if beams else {}),
                                        **({"cache": cache} if ring else {})))
            if ring and cut:
                cache.crop(-cut)
            prompt = torch.cat([turns[-1].sequences, tokens[:, prompt_length:]], 1)
            prompt[:, prompt.shape[1] - again - 1 - cut:] += (cut > 0)  # what was cut is not what comes again
            prompt %= 64
        results.append([torch.cat([turn.sequences for turn in turns], 1),
                        torch.cat([logits for turn in turns for logits in turn.logits])])
    (due, due_logits), (got, got_logits) = results
    return torch.equal(due, got), float((due_logits - got_logits).abs().max()), got_logits.numpy()


def generations(rank, group):
    torch.set_num_threads(1)
    names = ("llama", "mistral", "gemma2", "gemma3", "gptoss", "deepseek", "llama4")
    found = {name: continued(name, group) for name in names}
    found["a prompt of four tokens"] = continued("llama", group, prompt_length=4)
    found["sampled"] = continued("llama", group, do_sample=True, temperature=0.7, top_k=20)
    found["beams"] = continued("gptoss", group, beams=3)
    found["cropped"] = continued("mistral", group, cut=16)  # some tokens of the prompt as well
    yield found


def page(rank, group):
    """The tokens of the program of docs/python.md, and those of one process."""
    program = next(block for block in harness.python_blocks(harness.HERE.parents[1] / "docs/python.md") if "RingCache()" in block)
    names = {"torch": torch, "model": make("llama"), "group": group, "prompt": torch.arange(33)[None]}
    exec(program, names)
    names["model"].set_attn_implementation("eager")
    yield names["tokens"].tolist(), names["model"].generate(names["prompt"], max_new_tokens=20).tolist()


def error_of(call):
    try:
        call()
    except (NotImplementedError, RuntimeError) as error:
        return str(error)
    return "no error"


def refusals(rank, group):
    from ring_attention._model_calls import begin, end
    from ring_attention.transformers import RingCache, _mask, shard
    from transformers.masking_utils import chunked_causal_mask_function

    tokens = torch.zeros(1, SEQ, dtype=torch.long)
    texts = []
    for name in ("llama", "mistral", "qwen3"):
        window = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 0}
        model = make(name, **(window if name == "qwen3" else {}))
        part = shard(model, tokens, group=group)
        if name == "llama":  # a keyword that nobody knows
            part["window_of_tomorrow"] = 5
        if name == "mistral":
            part["attention_mask"][:, 0] = 0  # padding
        if name == "qwen3":  # a window in the mask of every layer, and none in their attention
            for layer in model.model.layers:
                layer.self_attn.sliding_window = None
        texts.append(error_of(lambda: model(**part)))
    model = make("llama4", floor_scale=8).eval()
    texts.append(error_of(lambda: model(**shard(model, tokens, documents=[0, 9, SEQ], group=group))))
    begin(model, shard(model, tokens, group=group)["position_ids"].ring_call)
    for size, padding in ((8, 0), (16, 3)):  # another chunk, an offset
        mask = chunked_causal_mask_function(size, torch.tensor([padding]))
        texts.append(str(_mask(config=model.config, mask_function=mask, local_size=16).problem))
    end(model)
    model, cache = make("llama").eval(), RingCache()
    texts.append(error_of(lambda: model.generate(tokens, cache=cache, max_new_tokens=2)))
    texts.append(error_of(lambda: shard(model, tokens[:, :1], cache=cache, group=group)))
    texts.append(error_of(lambda: shard(model, tokens, documents=[0, 9, SEQ], cache=cache, group=group)))
    with torch.no_grad():
        model(**shard(model, tokens, cache=cache, group=group))
    texts.append(error_of(lambda: shard(model, tokens, cache=cache, group=group)))
    texts.append(error_of(lambda: model.generate(tokens, cache=cache, max_new_tokens=2)))  # the cache has the whole prompt
    cache.crop(-1)
    texts.append(error_of(lambda: model.generate(tokens, cache=cache, max_new_tokens=2, prompt_lookup_num_tokens=2)))
    cache.reset()
    with torch.no_grad():
        model(**shard(model, tokens, cache=cache, group=group))
    texts.append(error_of(lambda: model(tokens[:, :1], cache=cache)))
    part = shard(model, tokens, cache=RingCache(), group=group)
    del part["cache"]  # as in a layer that has none
    texts.append(error_of(lambda: model(**part)))
    yield texts
