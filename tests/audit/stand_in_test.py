"""The stand-in for flash_attn against attention in double, which autograd differentiates: python3 stand_in_test.py"""

import itertools

import stand_in
import torch


def attention(q, k, v, scale, causal, left, right):
    """[tokens, heads, dim] of one document: out, lse [heads, tokens]"""
    seen = torch.zeros(len(q), len(k), dtype=torch.bool)
    for i, j in itertools.product(range(len(q)), range(len(k))):
        distance = i + len(k) - len(q) - j  # from the key to the query; the last of each meet
        seen[i, j] = (left < 0 or distance <= left) and (distance >= 0 if causal else right < 0 or -distance <= right)
    group = q.shape[1] // k.shape[1]
    out, lse = [], []
    for head in range(q.shape[1]):
        scores = (scale * q[:, head] @ k[:, head // group].T).masked_fill(~seen, -torch.inf)
        weights = torch.where(seen.any(1)[:, None], scores, 0).softmax(1) * seen
        out.append(weights @ v[:, head // group])
        lse.append(torch.where(seen.any(1), scores.logsumexp(1), torch.inf))
    return torch.stack(out, 1), torch.stack(lse)


def compare(queries, keys, heads, kv_heads, causal, left, right, dtype, tolerance):
    """Documents of these lengths, packed; the first of them also alone."""
    dim, scale = 8, 0.3
    q, k, v, dout = (torch.randn(n, h, dim).to(dtype) for n, h in (
        (sum(queries), heads), (sum(keys), kv_heads), (sum(keys), kv_heads), (sum(queries), heads)))
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    parts = [attention(*one, scale, causal, left, right) for one in zip(
        exact[0].split(queries), exact[1].split(keys), exact[2].split(keys))]
    out, lse = torch.cat([o for o, _ in parts]), torch.cat([part for _, part in parts], 1)
    expected = torch.autograd.grad(out, exact, dout.double())
    begins = [torch.tensor([0, *itertools.accumulate(n)], dtype=torch.int32) for n in (queries, keys)]
    longest = max(queries), max(keys)
    given = stand_in._flash_attn_varlen_forward(q, k, v, *begins, *longest, 0.0, scale, causal, left, right)[:2]
    gradients = [torch.full_like(x, torch.nan) for x in (q, k, v)]
    stand_in._flash_attn_varlen_backward(dout, q, k, v, *given, *gradients, *begins, *longest, 0.0, scale, causal, left,
                                         right)
    near = {"rtol": tolerance, "atol": tolerance}
    for found, due in zip((*given, *gradients), (out, lse, *expected)):
        torch.testing.assert_close(found.double(), due.detach(), **near)
    if len(queries) == 1:
        alone = stand_in._flash_attn_forward(q[None], k[None], v[None], 0.0, scale, causal, left, right)[:2]
        again = [torch.full_like(x, torch.nan)[None] for x in (q, k, v)]
        stand_in._flash_attn_backward(dout[None], q[None], k[None], v[None], *alone, *again, 0.0, scale, causal, left, right)
        for found, due in zip((*alone, *again), (*given, *gradients)):
            assert torch.equal(found[0], due)


def main():
    torch.manual_seed(1)
    documents = ([5], [5]), ([3], [7]), ([7], [3]), ([4, 1, 6], [4, 1, 6]), ([2, 5], [6, 3])
    masks = (False, -1, -1), (True, -1, -1), (True, 2, 0), (False, 1, 1), (False, 2, -1)
    types = (torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 5e-2)
    for (queries, keys), heads, mask, dtype in itertools.product(documents, ((2, 2), (4, 2), (3, 1)), masks, types):
        compare(queries, keys, *heads, *mask, *dtype)
    print("the stand-in agrees with attention in double")


main()
