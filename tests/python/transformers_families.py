"""Which families of causal language models of the installed transformers are right on a ring, and which are refused.

    python3 tests/python/transformers_families.py [FAMILY ...]

Each is a tiny model with random weights, on two ranks that are threads, against one process: one sequence and packed documents,
logits, loss and gradients. Prints a line for each family, and fails if one is wrong, or refused though docs/python.md lists it.
"""

import re
import sys
import warnings

import harness

harness.use_python_with("transformers")
harness.require("numpy", "torch", "transformers", "ring_attention")

import ring_attention as ra
import torch
import transformers
from ring_attention.transformers import shard, sum_gradients
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES

SEQ, DOCUMENTS, VOCABULARY = 37, [0, 11, 12, 29, 37], 96
#: What a configuration gets if it has the name.
TINY = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "n_embed", "embed_dim", "dim", "model_dim", "embedding_size",
                     "word_embed_proj_dim", "lru_width", "attention_hidden_size"), 64),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "d_ff", "moe_intermediate_size", "intermediate_size_mlp",
                     "ffn_hidden_size", "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size",
                     "shared_intermediate_size", "dense_intermediate_size", "block_ff_dim", "decoder_ffn_dim", "encoder_ffn_dim",
                     "expert_ffn_hidden_size", "prefix_dense_intermediate_size"), 96),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers", "decoder_layers", "encoder_layers"), 4),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads", "n_heads", "decoder_attention_heads",
                     "encoder_attention_heads", "linear_num_value_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "linear_num_key_heads", "attention_num_key_value_heads"), 2),
    **dict.fromkeys(("head_dim", "kv_channels", "linear_key_head_dim", "linear_value_head_dim", "qk_rope_head_dim",
                     "qk_nope_head_dim", "v_head_dim", "global_head_dim", "attention_head_dim", "rotary_dim"), 16),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 32),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "top_k_experts"), 2),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace", "n_shared_experts", "num_shared_experts"), 1),
    **dict.fromkeys(("sliding_window", "attention_window_size", "local_attention_window", "attention_chunk_size"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "seq_length", "max_seq_len", "n_ctx", "max_target_positions"), 512),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), VOCABULARY),
    **dict.fromkeys(("attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "dropout",
                     "resid_dropout", "embed_dropout", "activation_dropout", "attention_probs_dropout_prob",
                     "hidden_dropout_prob", "classifier_dropout", "layerdrop", "resid_pdrop", "emb_pdrop", "embd_dropout",
                     "residual_dropout", "ffn_dropout", "moe_dropout", "router_jitter_noise", "input_jitter_noise"), 0.0),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "mamba_d_head", "mamba_head_dim", "mamba_d_state"), 16),
    "hidden_size_per_layer_input": 8, "laurel_rank": 8, "state_size": 16, "mamba_n_groups": 1, "n_groups": 1,
    "mamba_d_ssm": 256, "chunk_size": 16, "mamba_chunk_size": 16,
}
#: What some need as well.
MORE = {
    "bamba": {"mamba_n_heads": 8, "attn_layer_indices": [1, 3]},
    "cohere_compass_text": {"layer_types": ["sliding_attention", "full_attention"] * 2, "rope_parameters": {
        kind: {"rope_type": "default", "rope_theta": 1e4} for kind in ("sliding_attention", "full_attention")}},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 1e4}, "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4,
                                                                                 "moe_top_k": 2}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "moe_intermediate_size": 96, "num_experts_per_tok": 2, "n_group": 1,
              "topk_group": 1},
    "falcon": {"head_dim": "its own"},
    "gemma3n_text": {"layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2},
    "gemma4_text": {"num_kv_shared_layers": 0},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granitemoehybrid": {"mamba_n_heads": 8, "layer_types": ["mamba", "attention"] * 2},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "ministral": {"head_dim": 16},
    "nemotron": {"head_dim": 16, "num_key_value_heads": 2},
    "prophetnet": {"num_hidden_layers": "its own"},
    "qwen4_exp_text": {"layer_types": "its own"},
    "mamba2": {"num_heads": 8},
}


def has(config, name):
    try:
        return getattr(config, name, None) is not None
    except Exception:  # the layers have different ones
        return True


def config_of(family):
    of_text = transformers.CONFIG_MAPPING[family]().get_text_config()
    names = {name: value for name, value in TINY.items() if has(of_text, name)}
    if "kv_lora_rank" in names:
        names["num_key_value_heads"] = 4
    names = {**names, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, **MORE.get(family, {})}
    return type(of_text)(**{name: value for name, value in names.items() if value != "its own"})


def make(family):
    torch.manual_seed(0)
    kind = getattr(transformers, CLASSES[family])
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in kind(config_of(family)).parameters())
    if size > 3e7:
        raise ValueError(f"{size} parameters")
    model = kind(config_of(family)).train()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2 and "conv" not in name:
                parameter.normal_(std=parameter.shape[-1] ** -0.5, generator=generator)
    return model


def alone(model, tokens, bounds):
    """Logits and the gradients of the loss: each document by itself."""
    pieces = [tokens[:, begin:end] for begin, end in zip(bounds, bounds[1:])]
    logits = [model(input_ids=piece, use_cache=False, attention_mask=torch.ones_like(piece)).logits for piece in pieces]
    sums = [torch.nn.functional.cross_entropy(x[:, :-1].flatten(0, 1).float(), piece[:, 1:].flatten(), reduction="sum")
            for x, piece in zip(logits, pieces)]
    loss = sum(sums) / sum(piece.shape[1] - 1 for piece in pieces) / len(tokens)
    loss.backward()
    return torch.cat([x.detach() for x in logits], 1), float(loss.detach())


def relative(got, due):
    return float((got - due).abs().max() / due.abs().max().clamp_min(1e-30))


def compare(models, bounds):
    """(error of logits, of the loss, of gradients), relative; or the text of a refusal. The first model is alone."""
    tokens = torch.randint(3, VOCABULARY, (2, SEQ), generator=torch.Generator().manual_seed(2))
    for model in models:
        model.zero_grad()

    def work(group):
        mine = models[1 + group.rank]
        documents = None if len(bounds) == 2 else bounds
        try:
            got = mine(**shard(mine, tokens, tokens, documents=documents, group=group))
        except NotImplementedError as error:
            return str(error)
        got.loss.backward()
        sum_gradients(mine, group=group)
        return got.logits.detach(), float(got.loss.detach()), ra.positions(SEQ, group=group)

    logits, loss = alone(models[0], tokens, bounds)
    results = ra.threads(2).run(work)
    if isinstance(results[0], str):
        return results[0]
    errors = [max(relative(part, logits[:, mine]) for part, _, mine in results), abs(sum(part[1] for part in results) - loss) / loss]
    worst = 0.0
    for due, *others in zip(*(model.parameters() for model in models)):
        for other in others:
            if due.grad is not None or other.grad is not None:
                zero = torch.zeros_like(due)
                due_grad = zero if due.grad is None else due.grad
                if float(due_grad.abs().max()) > 1e-6:
                    worst = max(worst, relative(zero if other.grad is None else other.grad, due_grad))
    return *errors, worst


def main(families):
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    found = {}
    for family in families:
        try:
            models = [make(family) for _ in range(3)]
            alone(models[0], torch.ones(1, SEQ, dtype=torch.long), [0, SEQ])
        except Exception as error:
            found[family] = f"not made: {type(error).__name__}: {str(error).split(chr(10))[0][:150]}"
        else:
            try:
                one = compare(models, [0, SEQ])
                packed = one if isinstance(one, str) else compare(models, DOCUMENTS)
                if isinstance(one, str):
                    found[family] = f"refused: {one}"
                else:
                    right = [isinstance(errors, str) or max(errors[0], errors[1]) <= 1e-4 and errors[2] <= 1e-3 for errors in (one, packed)]
                    found[family] = ("right: " if all(right) else "WRONG: ") + "; documents: ".join(
                        errors if isinstance(errors, str) else "logits {:.0e}, loss {:.0e}, gradients {:.0e}".format(*errors)
                        for errors in (one, packed))
            except Exception as error:
                found[family] = f"ERROR: {type(error).__name__}: {str(error)[:300]}"
        print(f"{family:24} {found[family]}", flush=True)
    kinds = [text.split(":")[0] for text in found.values()]
    print({kind: kinds.count(kind) for kind in sorted(set(kinds))})
    listed = on_page()
    bad = [family for family, text in found.items() if text.startswith(("WRONG", "ERROR"))]
    bad += [family for family in listed & found.keys() if not found[family].startswith("right")]
    print("not right:", " ".join(bad) or "none")
    print("right and not on the page:", " ".join(family for family in found if found[family].startswith("right") and family not in listed))
    return len(bad) > 0


def on_page():
    """The families that docs/python.md calls right."""
    text = (harness.HERE.parents[1] / "docs/python.md").read_text(encoding="utf-8")
    return set(re.findall("`([^`]+)`", text.split("these are right (`model_type`):\n\n")[1].split("\n\n")[0]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or sorted(CLASSES)))
