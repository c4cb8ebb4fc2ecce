"""The public rings, each as a function (q, k, v, case) for `ring_attention.diagnose`, over the packages of PyPI and the
checkouts that get.sh fetches. None of their files is changed. What a package wants of CUDA, or of parts that its ring does
not use, has a stand-in here."""

import contextlib
import functools
import importlib
import importlib.util
import sys
import types

import stand_in
import torch
import torch.distributed as dist

RINGS = {}
OTHERS = ""  # the folder with the checkouts


def ring(project, only, placement="contiguous", says="right", name="", **words):
    """says: right; or the mistakes that diagnose names, in the order in which it names them."""

    def keep(make):
        RINGS[name or make.__name__] = (make, project, says, {"only": only, "placement": placement, **words})
        return make

    return keep


half = functools.partial(ring, dtype="bfloat16")  # over flash_attn, which takes no float32


def of_file(name, path):
    """The module of one file of a checkout."""
    spec = importlib.util.spec_from_file_location(name, f"{OTHERS}/{path}")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def without_init(name, path=None):
    """A package whose __init__ is not run: it imports parts that are not needed, or not there."""
    if name in sys.modules:
        return
    package = types.ModuleType(name)
    package.__path__ = [f"{OTHERS}/{path}"] if path else importlib.util.find_spec(name).submodule_search_locations
    sys.modules[name] = package


class Unused(types.ModuleType):
    """A module whose names are imported by a ring's file, and not used by the ring."""

    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return sys.modules.get(f"{self.__name__}.{name}") or (lambda *_, **__: Unused("unused"))


def unused(*names):
    for name in names:
        sys.modules[name] = Unused(name)


def tokens_first(*arrays):
    """[1, heads, tokens, dim] to [1, tokens, heads, dim], or back"""
    return tuple(x.transpose(1, 2).contiguous() for x in arrays)


def called(function, causal=None, **words):
    """A function with the arguments of flash_attn_func and a group."""
    return lambda q, k, v, case: function(*tokens_first(q, k, v), causal=case.causal if causal is None else causal,
                                          group=case.comm, **words)


def window(function):
    return lambda q, k, v, case: called(function, window_size=(case.window - 1, 0))(q, k, v, case)


def begins_of(case):
    return torch.tensor(case.cu_seqlens or [0, case.tokens], dtype=torch.int32)


def zigzag_in_documents(case):
    """Each document dealt by itself, a chunk from its front and one from its back."""
    begins = case.get("cu_seqlens") or [0, case["tokens"]]
    ranks, mine = case["ranks"], [[] for _ in range(case["ranks"])]
    for begin, end in zip(begins[:-1], begins[1:]):
        size = (end - begin) // (2 * ranks)
        for rank, tokens in enumerate(mine):
            for chunk in (rank, 2 * ranks - 1 - rank):
                tokens.extend(range(begin + chunk * size, begin + (chunk + 1) * size))
    return mine


def dense(q, k, v, causal):
    """Of [1, tokens, heads, dim], for the all-to-alls"""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    return out.transpose(1, 2)


def llama3(prepare, attention, q, k, v, case):
    q_begins, k_begins, q_longest, k_longest, keys = prepare(
        begins_of(case), case.causal, case.rank, case.ranks)
    return attention(
        *(x[0] for x in tokens_first(q, k, v)), q_begins, k_begins, q_longest, k_longest, heads_k_stride=1,
        local_k_slice=keys, causal=case.causal, group=case.comm)[None]


# ring-flash-attn, whose __init__ imports an adapter for an older transformers, and yunchang, which began as a copy


def flash(package, file, function):
    if package == "ring_flash_attn":
        without_init(package)
    return getattr(importlib.import_module(f"{package}.{file}"), function)


for PROJECT, PACKAGE, PREFIX, FOLDER in (("ring-flash-attn", "ring_flash_attn", "rfa", ""),
                                         ("yunchang", "yunchang", "yunchang", "ring.")):
    for NAME, FILE, PLACEMENT, ONLY in (("ring", "ring", "contiguous", "full,causal,gqa,large"),
                                        ("zigzag", "zigzag_ring", "zigzag", "causal,gqa,large"),
                                        ("stripe", "stripe", "striped", "causal,gqa,large")):
        WHERE = PACKAGE, f"{FOLDER}{FILE}_flash_attn", f"{FILE}_flash_attn_func"
        half(PROJECT, ONLY, PLACEMENT, name=f"{PREFIX}_{NAME}")(lambda where=WHERE: called(flash(*where)))
        if NAME == "ring":
            ring(PROJECT, "full,causal,gqa", says="rounded dq", dtype="float16", name=f"{PREFIX}_ring_float16")(
                lambda where=WHERE: called(flash(*where)))
            half(PROJECT, "window", says="window-local-right", name=f"{PREFIX}_ring_window")(
                lambda where=WHERE: window(flash(*where)))


@half("ring-flash-attn", "causal,gqa,documents")
def rfa_llama3():
    return functools.partial(
        llama3, flash("ring_flash_attn", "llama3_flash_attn_varlen", "llama3_flash_attn_prepare_cu_seqlens"),
        flash("ring_flash_attn", "llama3_flash_attn_varlen", "llama3_flash_attn_varlen_func"))


def zigzag_varlen(function, whole):
    """whole: the function wants the boundaries of whole documents, not those of a rank."""

    def run(q, k, v, case):
        begins = begins_of(case) // (1 if whole else case.ranks)
        flat = (x if whole else x[0] for x in tokens_first(q, k, v))
        out = function(*flat, begins, int(begins.diff().max()), causal=True, group=case.comm)
        return out if whole else out[None]

    return run


@half("ring-flash-attn", "causal,gqa,documents", zigzag_in_documents, block=8, tokens=64)
def rfa_zigzag_varlen():
    return zigzag_varlen(flash(
        "ring_flash_attn", "zigzag_ring_flash_attn_varlen", "zigzag_ring_flash_attn_varlen_func"), False)


@half("ms-swift", "causal,gqa", "zigzag", says="delta-of-step saved-lse-overwritten")
def swift_zigzag():
    without_init("swift", "modelscope+ms-swift/swift")
    without_init("swift.sequence_parallel", "modelscope+ms-swift/swift/sequence_parallel")
    module = importlib.import_module("swift.sequence_parallel.zigzag_ring_attn")
    return zigzag_varlen(module.zigzag_ring_flash_attn_varlen_func, True)


# yunchang


@ring("yunchang", "full,causal", gradients=False)  # its backward raises an error
def yunchang_pytorch():
    kernels = importlib.import_module("yunchang.kernels.attention")
    kernels._scaled_dot_product_flash_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return called(importlib.import_module("yunchang.ring.ring_pytorch_attn").ring_pytorch_attn_func)


@ring("yunchang", "full,causal", parallel="ulysses")
def yunchang_ulysses():
    all_to_all = importlib.import_module("yunchang.comm.all_to_all").SeqAllToAll4D

    def run(q, k, v, case):
        q, k, v = (all_to_all.apply(case.comm, x, 2, 1, False) for x in tokens_first(q, k, v))
        return all_to_all.apply(case.comm, dense(q, k, v, case.causal), 1, 2, False)

    return run


# ring-attention-pytorch


@ring("ring-attention-pytorch", "full,causal,gqa", says="gqa-modulo dkdv-pair-added")
def lucidrains_ring(**words):
    function = importlib.import_module("ring_attention_pytorch.ring_flash_attention").ring_flash_attn
    return lambda q, k, v, case: function(
        *tokens_first(q, k, v), causal=case.causal, bucket_size=case.tokens // case.ranks, ring_reduce_col=True,
        ring_size=case.ranks, **words)


ring("ring-attention-pytorch", "causal,gqa", "striped", says="gqa-modulo dkdv-pair-added", name="lucidrains_striped")(
    functools.partial(lucidrains_ring, striped_ring_attn=True))


# The educational and the training frameworks


@ring("picotron", "full,causal,large")
def picotron():
    torch.cuda.synchronize = lambda *_: None
    rank, ranks = dist.get_rank(), dist.get_world_size()
    without_init("picotron", "huggingface+picotron/picotron")
    unused("picotron.process_group_manager")
    groups = types.SimpleNamespace(cp_rank=rank, cp_world_size=ranks, cp_send_rank=(rank + 1) % ranks,
                                   cp_recv_rank=(rank - 1) % ranks, cp_group=dist.group.WORLD)
    manager = sys.modules["picotron.process_group_manager"]
    manager.process_group_manager = groups
    sys.modules["picotron"].process_group_manager = manager
    function = importlib.import_module("picotron.context_parallel.context_parallel").ring_attention
    return lambda q, k, v, case: function(q, k, v, case.scale, case.causal)


@ring("nanotron", "full,causal,gqa", says="rounded dq", dtype="float16", name="nanotron_ring_float16")
@half("nanotron", "full,causal,gqa,large")
def nanotron_ring():
    module = of_file("nanotron_ring", "huggingface+nanotron/src/nanotron/nn/ring_attention.py")

    def run(q, k, v, case):
        tokens = q.shape[2]
        return module.ring_flash_attn_varlen_func(
            None, *(x[0] for x in tokens_first(q, k, v)), cu_seqlens=torch.tensor([0, tokens], dtype=torch.int32),
            max_seqlen=tokens, causal=case.causal, ring_pg=case.comm)[0][None]

    return run


@half("nanotron", "causal,gqa,documents")
def nanotron_llama3():
    module = of_file("nanotron_llama3", "huggingface+nanotron/src/nanotron/nn/llama3_ring_attention.py")
    return functools.partial(llama3, module.llama3_flash_attn_prepare_cu_seqlens, module.llama3_flash_attn_varlen_func)


@half("ColossalAI", "causal,gqa,large", "zigzag", says="textbook-lse")
def colossalai_ring():
    nothing = types.SimpleNamespace(query=lambda: True, record=lambda *_: None, wait_stream=lambda *_: None,
                                    wait_event=lambda *_: None)
    torch.cuda.Event = torch.cuda.Stream = torch.cuda.current_stream = lambda *_, **__: nothing
    torch.cuda.stream = lambda _: contextlib.nullcontext()
    unused("colossalai", *(f"colossalai.{name}" for name in (
        "accelerator", "kernel", "kernel.kernel_loader", "legacy", "logging", "shardformer")))
    sys.modules["colossalai.kernel.kernel_loader"].KernelLoader = object
    without_init("colossalai.shardformer.layer", "hpcaitech+ColossalAI/colossalai/shardformer/layer")
    module = importlib.import_module("colossalai.shardformer.layer.attn")
    send, wait = module.RingComm.send_recv, module.RingComm.wait

    def send_and_wait(self, *arguments, **words):  # NCCL keeps a send behind the receive before it, gloo does not
        received = send(self, *arguments, **words)
        wait(self)
        return received

    module.RingComm.send_recv, module.RingComm.wait = send_and_wait, lambda self: None
    module.get_current_device = lambda: "cpu"
    mesh = types.SimpleNamespace(get_group_along_axis=lambda *_, **__: dist.group.WORLD)
    return lambda q, k, v, case: module.RingAttention.attention(
        *(x.contiguous() for x in (q, k, v)), 0, module.AttnMaskType.CAUSAL, pg_mesh=mesh, inner_ring_size=case.ranks)


@half("xDiT", "full,causal,gqa")
def xdit_ring():
    unused("xfuser", *(f"xfuser.{name}" for name in (
        "core", "core.cache_manager", "core.cache_manager.cache_manager", "core.long_ctx_attention", "envs")))
    module = of_file("xdit_ring_file", "xdit-project+xDiT/xfuser/core/long_ctx_attention/ring/ring_flash_attn.py")
    return called(module.xdit_ring_flash_attn_func, attn_type=module.AttnType.FA)


@ring("verl", "full,causal,gqa", parallel="ulysses")
def verl_ulysses():
    module = of_file("verl_ulysses_file", "verl-project+verl/verl/utils/ulysses.py")

    def run(q, k, v, case):
        q, k, v = tokens_first(q, k, v)
        copies = max(case.ranks // k.shape[2], 1)  # as verl/models/transformers/monkey_patch.py
        k, v = (x.repeat_interleave(copies, 2) for x in (k, v))
        q, k, v = (module.gather_seq_scatter_heads(x, 1, 2, group=case.comm) for x in (q, k, v))
        return module.gather_heads_scatter_seq(dense(q, k, v, case.causal), 2, 1, group=case.comm)

    return run


@ring("DeepSpeed", "full,causal", parallel="ulysses")
def deepspeed_ulysses():
    unused("deepspeed", *(f"deepspeed.{name}" for name in (
        "accelerator", "module_inject", "module_inject.tp_shard", "utils")))
    sys.modules["deepspeed.module_inject.tp_shard"].get_num_kv_heads = lambda: None
    sys.modules["deepspeed.comm"] = sys.modules["deepspeed"].comm = dist
    module = of_file("deepspeed_layer", "deepspeedai+DeepSpeed/deepspeed/sequence/layer.py")
    attention = {causal: module.DistributedAttention(
        lambda q, k, v, *_, causal=causal, **__: dense(q, k, v, causal), dist.group.WORLD, 2, 1) for causal in (True, False)}
    return lambda q, k, v, case: attention[case.causal](*tokens_first(q, k, v), 0)


# ringmaster: over gloo it uses its own PyTorch kernels


@ring("ringmaster", "full,causal,gqa,large")
def ringmaster_p2p():
    function = importlib.import_module("ringmaster.ring.p2p_attn").ring_p2p_attention
    return lambda q, k, v, case: function(q, k, v, group=case.comm, causal=case.causal, scaling=case.scale)


def ringmaster_packed(file, name):
    function = getattr(importlib.import_module(f"ringmaster.ring.{file}"), name)
    return lambda q, k, v, case: function(q, k, v, group=case.comm, scaling=case.scale, cu_seqlens=begins_of(case))


for NAME, FILE, FUNCTION, WORDS in (("zigzag", "zigzag", "zigzag_ring_attention", {"placement": "zigzag"}),
                                    ("distflash", "distflash", "distflash_attention", {}),
                                    ("all_gather", "loop", "varlen_ring_attention", {"parallel": "all-gather"})):
    ring("ringmaster", "causal,gqa,documents,large", name=f"ringmaster_{NAME}", **WORDS)(
        functools.partial(ringmaster_packed, FILE, FUNCTION))


# PyTorch and diffusers: their templates of a ring, with the CPU's kernels in place of CUDA's

KERNEL = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
KERNEL_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def pytorch(balanced):
    module = importlib.import_module("torch.distributed.tensor.experimental._context_parallel._attention")

    def forward_op(q, k, v, is_causal, dropout_p, scale):
        return KERNEL(q, k, v, dropout_p, is_causal, scale=scale)

    def backward_op(query, key, value, out, logsumexp, grad_out, is_causal, dropout_p, scale, **_):
        return KERNEL_BACKWARD(grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, scale=scale)

    @torch.no_grad()
    def run(q, k, v, case):
        module._cp_options.enable_load_balance = balanced
        words = {"query": q.detach(), "key": k.detach(), "value": v.detach(), "is_causal": case.causal, "dropout_p": 0.0,
                 "scale": case.scale}
        out, lse, *_ = module._templated_ring_attention(case.comm, 2, forward_op, **words)
        gradients = module._templated_ring_attention_backward(
            case.comm, 2, backward_op, grad_out=case.dout, grad_out_name="grad_out", out=out, logsumexp=lse, **words)
        return (out, lse, *gradients[:3])

    return run


ring("PyTorch", "full,causal,large", name="pytorch_ring")(functools.partial(pytorch, False))
ring("PyTorch", "causal", "zigzag", name="pytorch_balanced")(functools.partial(pytorch, True))


@ring("diffusers", "full", says="dkdv-wrong-way")
def diffusers_ring():
    template = importlib.import_module("diffusers.models.attention_dispatch").TemplatedRingAttention
    mesh = importlib.import_module("torch.distributed.device_mesh").DeviceMesh.from_group(dist.group.WORLD, "cpu")
    settings = types.SimpleNamespace(context_parallel_config=types.SimpleNamespace(
        _ring_mesh=mesh, _ring_local_rank=dist.get_rank(), ring_degree=dist.get_world_size(), convert_to_fp32=True))

    def forward_op(ctx, q, k, v, mask, dropout_p, is_causal, scale, *_, _save_ctx, **__):
        if _save_ctx:
            ctx.save_for_backward(q, k, v)
        out, lse = KERNEL(*tokens_first(q, k, v), dropout_p, is_causal, scale=scale)
        return out.transpose(1, 2), lse.transpose(1, 2)

    def backward_op(ctx, grad_out, query, key, value, out, lse):
        arrays = tokens_first(grad_out, query, key, value, out)
        return tokens_first(*KERNEL_BACKWARD(*arrays, lse.transpose(1, 2).contiguous(), 0.0, False))

    return lambda q, k, v, case: template.apply(*tokens_first(q, k, v), None, 0.0, False, case.scale, False, False, forward_op,
                                                backward_op, settings)


stand_in.install()
