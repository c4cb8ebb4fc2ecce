"""What each rank of transformers_test.py does: models of transformers with random weights, on a ring and on one process."""

import ring_attention as ra
import torch
import transformers as t

SEQ = 61
COMMON = dict(vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=2, head_dim=16, max_position_embeddings=4096, attention_dropout=0.0, bos_token_id=None,
              eos_token_id=None, pad_token_id=None)


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
    if name == "llama4":  # its mask has chunks
        return t.Llama4ForCausalLM(t.Llama4TextConfig(
            **COMMON, intermediate_size_mlp=64, num_local_experts=2, attention_chunk_size=16, moe_layers=[]))
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


def compare(name, documents, group):
    """(The largest difference of logits, that of gradients, relative to the largest gradient of each parameter)."""
    from ring_attention.transformers import shard, sum_gradients

    tokens = torch.randint(0, 64, (1, SEQ), generator=torch.Generator().manual_seed(1))
    models = [make(name), make(name)]
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
    for name in ("llama", "qwen3", "mistral", "gemma2", "gemma3", "gptoss", "deepseek"):
        for documents in ([0, SEQ], [0, 17, 18, SEQ]):
            found[f"{name} {documents}"] = compare(name, documents, group)
    yield found


def refusals(rank, group):
    from ring_attention.transformers import shard

    tokens = torch.zeros(1, SEQ, dtype=torch.long)
    texts = []
    for name in ("llama4", "llama", "mistral", "qwen3"):
        model = make(name, **({"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 0} if name == "qwen3" else {}))
        part = shard(model, tokens, group=group)
        if name == "llama":  # a keyword that nobody knows
            part["window_of_tomorrow"] = 5
        if name == "mistral":
            part["attention_mask"][:, 0] = 0  # padding
        if name == "qwen3":  # a window in the mask of every layer, and none in their attention
            for layer in model.model.layers:
                layer.self_attn.sliding_window = None
        try:
            model(**part)
            texts.append("no error")
        except NotImplementedError as error:
            texts.append(str(error))
    yield texts
