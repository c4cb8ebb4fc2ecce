"""ring_attention.torch beside PyTorch's own attention and its automatic differentiation."""

import unittest

import harness

harness.use_python_with("torch")
harness.require("numpy", "torch", "ring_attention")

import numpy as np
import reference
import ring_attention as ra
import ring_attention.torch as module
import torch
import torch.utils.checkpoint
from ring_attention.torch import attention, ring_attention, scaled_dot_product_attention
from torch.nn.functional import scaled_dot_product_attention as theirs

torch.manual_seed(0)
torch.set_num_threads(1)


def random(*shape, dtype=torch.float64, gradient=True):
    return torch.randn(*shape, dtype=dtype, requires_grad=gradient)


def gradients(function, tensors, *words, **named):
    """out, and the gradients of a random sum of it."""
    out = function(*tensors, *words, **named)
    weights = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(out.dtype)
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), tensors)]


def both_agree(tensors, bound, **words):
    """Do ours and theirs agree? Also with NaN this is False."""
    pairs = zip(gradients(scaled_dot_product_attention, tensors, threads=1, **words), gradients(theirs, tensors, **words))
    return all(bool((ours.double() - want.double()).abs().max() <= bound) for ours, want in pairs)


class Torch(unittest.TestCase):
    def test_random_cases_against_pytorch(self):
        rng = np.random.default_rng(0)
        for number in range(100):
            batch, heads, queries, keys, dim = (int(x) for x in rng.integers((1, 1, 1, 1, 1), (3, 4, 40, 40, 33)))
            group = int(rng.integers(1, 4))
            q, k = random(batch, heads * group, queries, dim), random(batch, heads, keys, dim)
            v = random(batch, heads, keys, (dim, 3, 21)[number % 3])
            words = [{}, {"is_causal": True}, {"scale": 0.4}, {"attn_mask": random(queries, keys)},
                     {"attn_mask": random(batch, 1, queries, keys)},
                     {"attn_mask": torch.rand(1, keys) < 0.8}][number % 6]
            if isinstance(words.get("attn_mask"), torch.Tensor) and words["attn_mask"].dtype == torch.bool:
                words["attn_mask"][..., 0] = True  # PyTorch's versions differ in rows without a key
            with self.subTest(number=number, q=q.shape, k=k.shape, words=list(words)):
                self.assertTrue(both_agree((q, k, v), 1e-12, enable_gqa=True, **words))

    def test_compiled_and_exported_functions_are_the_same(self):
        class Layer(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(8, 8, dtype=torch.float64)

            def forward(self, q, k, v):
                out = self.layer(scaled_dot_product_attention(self.layer(q), k, v, is_causal=True))
                ring, lse = ring_attention(q, k, v, seq=9, causal=True, documents=[0, 4, 9])
                return out + ring * lse[..., None]

        function, tensors = Layer(), [random(1, 2, 9, 8) for _ in range(3)]
        due = gradients(function, tensors)
        for one, other in zip(gradients(torch.compile(function, fullgraph=True, backend="aot_eager"), tensors), due):
            self.assertTrue(torch.equal(one, other))
        exported = torch.export.export(function, tuple(tensors)).module()
        self.assertTrue(torch.equal(exported(*tensors), due[0]))

    def test_operators_pass_the_checks_of_pytorch(self):
        q, k, v = random(1, 4, 5, 2), random(1, 2, 6, 2), random(1, 2, 6, 3)
        bias, sink, documents = random(5, 6), random(4), torch.tensor([0, 2, 6], dtype=torch.int32)
        intervals = torch.tensor([[0, 1], [2, 5]]).expand(5, 2, 2).contiguous()
        for some in ((None, None, None, None), (bias, sink, documents, intervals)):
            words = [default for _, default in module._WORDS.values()]
            torch.library.opcheck(torch.ops.ring_attention.forward.default, (q, k, v, *some, *words))
            out, lse = attention(q, k, v, bias=some[0], sink=some[1], documents=some[2], intervals=some[3])
            detached = [None if x is None else x.detach() for x in (out, lse, out, lse, q, k, v, *some)]
            torch.library.opcheck(torch.ops.ring_attention.backward.default, (*detached, *words))

    def test_vmap_and_checkpoints(self):
        tensors = [random(3, 2, 5, 4) for _ in range(3)]
        due = gradients(lambda *t: attention(*t, causal=True)[0], tensors)
        for function in (torch.func.vmap(lambda *t: attention(*t, causal=True)[0]),
                         lambda *t: torch.utils.checkpoint.checkpoint(lambda *u: attention(*u, causal=True)[0], *t,
                                                                      use_reentrant=False)):
            for one, want in zip(gradients(function, tensors), due):
                self.assertTrue(torch.equal(one, want))
        with torch.inference_mode():
            self.assertTrue(torch.equal(attention(*tensors, causal=True)[0], due[0]))

    def test_gradient_of_the_mask(self):
        q, k, v = random(2, 3, 7, 4), random(2, 3, 6, 4), random(2, 3, 6, 4)
        for shape in ((2, 1, 7, 6), (3, 7, 6), (7, 6), (1, 6)):
            bias = random(*shape)
            for ours, want in zip(gradients(lambda *t: scaled_dot_product_attention(*t), (q, k, v, bias)),
                                  gradients(lambda *t: theirs(*t), (q, k, v, bias))):
                self.assertTrue(bool((ours - want).abs().max() <= 1e-12), shape)

    def test_shapes_and_types(self):
        for shape in ((5, 8), (2, 5, 8), (2, 3, 5, 8), (2, 2, 3, 5, 8)):
            self.assertTrue(both_agree([random(*shape) for _ in range(3)], 1e-12, is_causal=True), shape)
        for shape in ((2, 1, 1, 5, 5), (2, 3, 5, 5)):
            self.assertTrue(both_agree([random(2, 2, 3, 5, 8) for _ in range(3)], 1e-12, attn_mask=random(*shape)), shape)
        self.assertTrue(both_agree([random(2, 5, 8, dtype=torch.float32) for _ in range(3)], 1e-5))
        for kind, bound in ((torch.float16, 1e-2), (torch.bfloat16, 1e-1)):
            tensors = [random(2, 5, 8, dtype=kind) for _ in range(3)]
            self.assertEqual(scaled_dot_product_attention(*tensors).dtype, kind)
            self.assertTrue(both_agree(tensors, bound))

    def test_a_wrong_mask_is_noticed(self):
        q, k, v = (random(2, 9, 4) for _ in range(3))
        ours = scaled_dot_product_attention(q, k, v, is_causal=True)
        self.assertFalse(bool((ours - theirs(q, k, v)).abs().max() <= 1e-3))

    def test_gradcheck(self):
        q, k, v = random(1, 4, 5, 2), random(1, 2, 6, 2), random(1, 2, 6, 3)
        bias, sink = random(5, 6), random(4)
        for words in ({}, {"causal": True}, {"window": (2, 1)}, {"dropout": 0.3, "seed": 4}, {"alibi": True, "softcap": 0.8},
                      {"documents": [0, 2, 6]}, {"causal": True, "blocks": [(1, 3), (4, 6)], "prefix": 1},
                      {"window": (0, 0), "sink_tokens": 1, "global_tokens": [(4, 5)]},
                      {"intervals": torch.tensor([[0, 1], [2, 5]]).expand(5, 2, 2)}):
            self.assertTrue(torch.autograd.gradcheck(
                lambda q, k, v, bias, sink: attention(q, k, v, bias=bias, sink=sink, threads=1, **words),
                (q, k, v, bias, sink)), words)
        self.assertTrue(torch.autograd.gradcheck(
            lambda q, k, v, sink: ring_attention(q, k, v, sink=sink, seq=(5, 6), threads=1, causal=True), (q, k, v, sink)))

    def test_gradcheck_can_fail(self):
        class Wrong(torch.autograd.Function):
            @staticmethod
            def forward(context, q):
                context.save_for_backward(q)
                return attention(q, q, q)[0]

            @staticmethod
            def backward(context, grad):
                return grad

        with self.assertRaisesRegex(RuntimeError, "Jacobian mismatch"):
            torch.autograd.gradcheck(Wrong.apply, (random(2, 3, 2),))

    def test_errors(self):
        q, k, v = (random(2, 5, 4) for _ in range(3))
        for text, call in (
                ("enable_gqa=True", lambda: scaled_dot_product_attention(q, k[:1], v[:1])),
                ("give one of them", lambda: scaled_dot_product_attention(q, k, v, torch.ones(5, 5), is_causal=True)),
                ("q is on meta", lambda: attention(q.to("meta"), k, v)),
                ("k is float32 where q is float64", lambda: attention(q, k.float(), v)),
                ("where", lambda: attention(q, k, v[:, :4])),
                ("kernel: it gets a mask only",
                 lambda: ring_attention(q, k, v, seq=5, kernel=reference.torch_kernel, bias=random(5, 5))),
                ("dropout is 1", lambda: scaled_dot_product_attention(q, k, v, dropout_p=1))):
            with self.assertRaisesRegex((TypeError, ValueError), text):
                call()
        out, _ = attention(q, k, v)
        (first,) = torch.autograd.grad(out.sum(), q, create_graph=True)
        with self.assertRaises(RuntimeError):
            first.sum().backward()

    def test_a_profile_names_the_calls(self):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            out, _ = attention(random(2, 5, 4), random(2, 5, 4), random(2, 5, 4), threads=1)
            out.sum().backward()
        names = {event.key for event in profile.key_averages()}
        self.assertLessEqual({"ring_attention.attention", "ring_attention.attention_backward"}, names)

    def test_ring_on_three_ranks(self):
        done = harness.run(3, "torch_program.py")
        self.assertEqual((done.returncode, done.stdout), (0, "all is well\n"), done.stderr)

    def test_pytorchs_kernel_in_the_ring(self):
        q, k, v = (np.random.default_rng(1).standard_normal((2, 4, 50, 16)) for _ in range(3))
        got = ra.ring_attention(q, k, v, seq=50, causal=True, kernel=reference.torch_kernel)
        want = ra.attention(q, k, v, causal=True)
        self.assertTrue(np.abs(got.out - want.out).max() <= 1e-12)
        self.assertTrue(np.abs(got.lse - want.lse).max() <= 1e-12)


if __name__ == "__main__":
    unittest.main(verbosity=2)
