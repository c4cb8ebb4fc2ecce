"""attention and attention_backward on one process."""

import gc
import inspect
import os
import signal
import subprocess
import sys
import threading
import time
import unittest

import harness
import numpy as np
import reference
import ring_attention as ra
from reference import largest_difference, random_case

RNG = np.random.default_rng(0)


def arrays(*shape, dtype=np.float64):
    return [RNG.standard_normal(shape).astype(dtype) for _ in range(4)]


def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Values(unittest.TestCase):
    def assert_near(self, got, want, bound, name):
        self.assertTrue(largest_difference(got, want) <= bound, f"{name}: {largest_difference(got, want)}")

    def test_random_cases_against_numpy_in_double(self):
        for number in range(100):
            q, k, v, grad_out, words = random_case(number)
            with self.subTest(number=number, **words):
                out, lse, _ = reference.attention(q, k, v, **words)
                got = ra.attention(q, k, v, threads=1 + number % 3, **words)
                self.assert_near(got.out, out, 1e-12, "out")
                self.assert_near(got.lse, lse, 1e-12, "lse")
                also = {"grad_lse": np.where(np.isneginf(lse), 0, np.sin(out.sum(-1)))} if number % 2 else {}
                gradients = ra.attention_backward(grad_out, q, k, v, *got, threads=1 + number % 3, **also, **words)
                for name, one, want in zip(ra.Gradients._fields, gradients,
                                           reference.gradients(grad_out, q, k, v, **also, **words)):
                    self.assertEqual(one is None, want is None, name)
                    if want is not None:
                        self.assert_near(one, want, 1e-12 * max(1, np.abs(want).max(initial=0)), "d" + name)

    def test_scale_zero_gives_the_mean_of_v(self):
        q, k, v, _ = arrays(1, 1, 11, 8)
        self.assert_near(ra.attention(q, k, v, scale=0).out, v.mean(-2, keepdims=True) + 0 * q, 1e-12, "out")

    def test_two_three_and_four_dimensions(self):
        four = arrays(1, 1, 11, 8)
        whole = ra.attention(*four[:3], causal=True)
        gradients = ra.attention_backward(four[3], *four[:3], *whole, causal=True, bias=np.zeros((11, 11)))
        self.assertEqual(gradients.bias.shape, (11, 11))
        for leave_out in (1, 2):
            some = [array.reshape(array.shape[leave_out:]) for array in four]
            out, lse = result = ra.attention(*some[:3], causal=True)
            self.assertEqual((out.shape, lse.shape), (some[0].shape, some[0].shape[:-1]))
            self.assertTrue(np.array_equal(out.ravel(), whole.out.ravel()))
            for one, want in zip(ra.attention_backward(some[3], *some[:3], *result, causal=True)[:3], gradients):
                self.assertEqual(one.shape, some[0].shape)
                self.assertTrue(np.array_equal(one.ravel(), want.ravel()))

    def test_values_of_another_width(self):
        q, k, *_ = arrays(3, 11, 8)
        for value_dim in (1, 5, 12):
            v, grad_out = RNG.standard_normal((2, 3, 11, value_dim))
            result = ra.attention(q, k, v, causal=True)
            back = ra.attention_backward(grad_out, q, k, v, *result, causal=True)
            self.assertEqual([x.shape for x in (*result, *back[:3])], [x.shape for x in (v, q[..., 0], q, k, v)])
            for same_bits in (4, 256):
                ours = [x.astype(np.float32) for x in (grad_out, q, k, v)]
                one = ra.attention(*ours[1:], causal=True, same_bits=same_bits)
                self.assert_near(one.out, result.out, 1e-5, "out")
                exact = ra.attention_backward(*ours, *one, causal=True, same_bits=same_bits)
                for got, want in zip(exact[:3], back):
                    self.assert_near(got, want, 1e-4, "a gradient")

    def test_float16_and_float32_are_computed_in_float32(self):
        half = arrays(2, 20, 8, dtype=np.float16)
        single = [array.astype(np.float32) for array in half]
        got, want = ra.attention(*half[:3]), ra.attention(*single[:3])
        self.assertEqual(got.out.dtype, np.float32)
        self.assertTrue(np.array_equal(got.out, want.out) and np.array_equal(got.lse, want.lse))
        exact = reference.attention(*(array.astype(np.float64)[np.newaxis] for array in half[:3]))[0][0]
        self.assert_near(got.out, exact, 1e-5, "out")

    def test_any_order_in_memory(self):
        q, k, v, grad_out = arrays(2, 9, 3, 8)  # [B, S, H, D]
        turned = [array.swapaxes(1, 2) for array in (q, k, v, grad_out)]
        straight = [array.copy() for array in turned]
        self.assertFalse(turned[0].flags.c_contiguous)
        result = ra.attention(*straight[:3])
        self.assertTrue(np.array_equal(ra.attention(*turned[:3]).out, result.out))
        backwards = [array[..., ::-1] for array in straight]
        self.assert_near(ra.attention(*backwards[:3]).out[..., ::-1], result.out, 1e-12, "out")
        swapped = [array.astype(array.dtype.newbyteorder()) for array in straight]
        self.assertTrue(np.array_equal(ra.attention(*swapped[:3]).out, result.out))
        for array in straight:
            array.flags.writeable = False
        self.assertTrue(np.array_equal(ra.attention(*straight[:3]).out, result.out))

    def test_arrays_of_the_right_order_are_not_copied(self):
        class Seen(np.ndarray):
            pass

        q, k, v, _ = arrays(1, 2, 300, 64)
        taken = ra._arrays.Arrays(q)
        self.assertTrue(np.shares_memory(taken.q, q))
        self.assertTrue(np.shares_memory(taken.as_array("k", k.view(Seen)), k))
        out, lse = ra.attention(q, k, v)
        self.assertFalse(out.flags.owndata)  # the memory of the library's result
        self.assertTrue(out.flags.writeable)

    def test_parts_of_the_keys_are_merged(self):
        q, k, v = (np.random.default_rng(0).standard_normal((2, 3, 20, 8)) for _ in range(3))
        want = ra.attention(q, k, v, causal=True, sink=[0.5, -1, 2])
        parts = [ra.attention(q, k[:, :, keys], v[:, :, keys], causal=True, q_offset=-keys.start, **words)
                 for keys, words in ((slice(0, 7), {"sink": [0.5, -1, 2]}), (slice(7, 8), {"sink": [-np.inf] * 3}),
                                     (slice(8, 20), {}))]
        for one, other in zip(ra.merge(*parts), want):
            self.assertLessEqual(largest_difference(one, other), 1e-13)
        hidden = ra.merge(*[(np.zeros((4, 8)), np.full(4, -np.inf))] * 2)
        self.assertTrue((hidden.out == 0).all() and np.isneginf(hidden.lse).all())

    def test_positions_are_those_of_a_longer_sequence(self):
        """A ring of one's own: queries and keys of any places, with documents and dropout, forward and backward."""
        q, k, v, grad = arrays(1, 2, 40, 8)
        for words in ({"causal": True}, {"window": (5, 2)}, {"causal": True, "documents": np.array([0, 11, 40], np.int32)},
                      {"alibi": True, "softcap": 0.8}, {"dropout": 0.3, "seed": 3}, {"causal": True, "q_offset": -3}):
            rows = RNG.permutation(40)[:17]
            parts = np.array_split(RNG.permutation(40), 3)
            whole = ra.attention(q, k, v, **words)
            back = ra.attention_backward(grad[:, :, rows], q[:, :, rows], k, v, whole.out[:, :, rows], whole.lse[:, :, rows],
                                         positions=(rows, np.arange(40)), **words)
            due = ra.attention_backward(grad, q, k, v, *whole, **words)
            self.assert_near(back.q, due.q[:, :, rows], 1e-11, words)
            got = ra.merge(*(ra.attention(q[:, :, rows], k[:, :, part], v[:, :, part], positions=(rows, part), **words)
                             for part in parts))
            self.assert_near(got.out, whole.out[:, :, rows], 1e-12, words)
            self.assert_near(got.lse, whole.lse[:, :, rows], 1e-12, words)
            for part in parts:
                own = ra.attention_backward(grad[:, :, rows], q[:, :, rows], k[:, :, part], v[:, :, part], *got,
                                            positions=(rows, part), **words)
                self.assert_near(own.k, back.k[:, :, part], 1e-11, words)
                self.assert_near(own.v, back.v[:, :, part], 1e-11, words)
        for wrong in ((rows, [0]), (rows, -np.arange(40)), ([0], np.arange(40))):
            with self.assertRaisesRegex(ValueError, "positions: give "):
                ra.attention(q[:, :, rows], k, v, positions=wrong)
        with self.assertRaisesRegex(ValueError, "positions: they go neither with a bias"):
            ra.attention(q, k, v, positions=(range(40), range(40)), bias=np.zeros((40, 40)))

    def test_packed_batches_as_the_page_shows_them(self):
        """The boundaries of documents with and without their 0, in both types; each document is attention of its own."""
        _, _, _, one, packed, *_ = harness.python_blocks("python.md")
        names = {}
        exec(one + packed, names)
        q, k, v, out, bounds = (names[name] for name in ("q", "k", "v", "out", "cu_seqlens"))
        for begin, end in zip(bounds, bounds[1:]):
            alone = ra.attention(*(x[begin:end].swapaxes(0, 1) for x in (q, k, v)), causal=True)
            self.assert_near(out[begin:end], alone.out.swapaxes(0, 1), 1e-12, (begin, end))
        heads_first = [x.swapaxes(0, 1) for x in (q, k, v)]
        for given in (bounds[1:], bounds.astype(np.int64), bounds[1:].tolist()):
            same = ra.attention(*heads_first, causal=True, documents=given)
            self.assertEqual(same.out.swapaxes(0, 1).tobytes(), out.tobytes())
        held = [ra.threads(2).run(lambda group: ra.positions(1000, documents=given, same_bits=64, group=group).tolist())
                for given in (bounds, bounds[1:])]
        self.assertEqual(*held)
        with self.assertRaises(TypeError):
            ra.attention(*heads_first, documents=bounds + 0.5)

    def test_masks_of_several_intervals_where_they_cannot_be(self):
        for wrong in ({"blocks": [(5, 3)]}, {"intervals": np.zeros((9, 1, 2), int)}, {"global_tokens": [(0, 1), (2, 3), (4, 5)]}):
            with self.assertRaisesRegex(ra.InputError, "^balanced: "):
                ra.balanced(100, 4, causal=True, window=(5, 0), **wrong)
        q, k, v, _ = arrays(2, 6, 4)
        with self.assertRaisesRegex(ValueError, "sink_tokens: decode has the masks"):
            ra.threads(1).run(lambda group: ra.decode(q, k, v, sink_tokens=2, window=(1, 0), group=group))

    def test_threads_have_the_same_bits(self):
        four = arrays(2, 3, 70, 16, dtype=np.float32)
        results = [ra.attention(*four[:3], causal=True, dropout=0.2, seed=3, threads=threads) for threads in (1, 2, 5)]
        gradients = [ra.attention_backward(four[3], *four[:3], *results[0], causal=True, dropout=0.2, seed=3,
                                           threads=threads) for threads in (1, 2, 5)]
        for other in (1, 2):
            self.assertTrue(all(map(np.array_equal, results[0], results[other])))
            self.assertTrue(all(map(np.array_equal, gradients[0][:3], gradients[other][:3])))

    def test_dropout_depends_on_the_seed_and_drops_as_many_as_it_says(self):
        q, k, _, _ = arrays(1, 1, 200, 4)
        eye = np.eye(200)[np.newaxis, np.newaxis]
        q, k = np.zeros_like(eye), np.zeros_like(eye)  # all weights are 1/200, so out shows the factors
        factors = 200 * ra.attention(q, k, eye, dropout=0.25, seed=1).out
        self.assertAlmostEqual(np.mean(factors == 0), 0.25, delta=0.01)
        self.assertTrue(np.allclose(factors[factors != 0], 1 / 0.75))
        self.assertFalse(np.array_equal(factors, 200 * ra.attention(q, k, eye, dropout=0.25, seed=2).out))

    def test_empty_arrays(self):
        q, none = np.ones((2, 3, 4)), np.ones((2, 0, 4))
        out, lse = ra.attention(q, none, none)
        self.assertTrue((out == 0).all() and np.isneginf(lse).all())
        self.assertEqual(ra.attention(none, q, q).out.shape, (2, 0, 4))
        gradients = ra.attention_backward(none, none, q, q, none, np.ones((2, 0)))
        self.assertTrue((gradients.k == 0).all() and gradients.q.shape == (2, 0, 4))


class Errors(unittest.TestCase):
    def refused(self, kind, text, *positional, **words):
        with self.assertRaisesRegex(kind, text):
            ra.attention(*positional, **words)

    def test_the_argument_is_named(self):
        q, k, v, grad_out = arrays(2, 5, 4)
        self.refused(TypeError, "q is int64: it must be", q.astype(int), k, v)
        self.refused(TypeError, "q is complex128", q.astype(complex), k, v)
        self.refused(TypeError, "v is object", q, k, v.astype(object))
        self.refused(TypeError, "k is float32 where q is float64", q, k.astype(np.float32), v)
        self.refused(ValueError, "k has 2 dimensions", q, k[0], v)
        self.refused(ValueError, "q has 1 dimensions", q[0, 0], k[0, 0], v[0, 0])
        self.refused(ra.InputError, r"k is \[1, 2, 5, 3\] where \[1, 2, 5, 4\] is due", q, k[..., :3], v)
        self.refused(ValueError, "bias has 1 dimensions", q, k, v, bias=np.ones(5))
        self.refused(ValueError, "documents are boundaries", q, k, v, documents=[0, 4])
        self.refused(ValueError, "documents are boundaries", q, k, v, documents=[0, 4, 3, 5])
        self.refused(ValueError, "window is", q, k, v, window=(1, 2, 3))
        for wrong in ((-2, 0), (1.5, 2), (2**63, 0), (0, 2**53 + 1), 3, "ab"):
            self.refused(ValueError, "window is .*: it must be ", q, k, v, window=wrong)
        self.refused(ValueError, "prefix is 0", q, k, v, prefix=0)
        self.refused(ValueError, "blocks: give a list", q, k, v, blocks=[0, 3])
        self.refused(ValueError, "blocks: give a list", q, k, v, blocks=[(0.0, 3.0)])
        for word, given in (("prefix", 3), ("blocks", [(0, 2)]), ("sink_tokens", 2), ("global_tokens", [(0, 1)])):
            self.refused(ValueError, f"{word} changes nothing without", q, k, v, **{word: given})
        rows = np.tile([[0, 1], [3, 4]], (5, 1, 1))
        self.refused(ValueError, "intervals are float64", q, k, v, intervals=rows * 1.0)
        self.refused(ValueError, r"intervals are int64 \[5, 2\]", q, k, v, intervals=rows[:, 0])
        self.refused(ValueError, "a whole mask", q, k, v, intervals=rows, chunk=3)
        for word, given in (("intervals", rows), ("prefix", 3), ("chunk", 2)):
            self.refused(ValueError, f"{word}: attention with positions= has the masks causal, window and documents", q, k, v,
                         causal=True, positions=(range(5), range(5)), **{word: given})
        self.refused(ra.InputError, "3 sinks for 2 heads", q, k, v, sink=[1, 2, 3])
        self.refused(ValueError, "sink is NaN", q, k, v, sink=[1, np.nan])
        for wrong in (0, -1.0, np.inf, np.nan):
            self.refused(ValueError, f"softcap is {wrong}: it must be positive and finite", q, k, v, softcap=wrong)
        self.refused(ValueError, "dropout is 1", q, k, v, dropout=1)
        self.refused(ra.InputError, "same_bits needs arrays of float", q, k, v, same_bits=16)
        self.refused(TypeError, "causa", q, k, v, causa=True)
        out, lse = ra.attention(q, k, v)
        for spoilt, text in (({"grad_out": grad_out[:, :4]}, "grad_out is"), ({"out": out[:1]}, "out is"),
                             ({"lse": lse[:, :4]}, "^lse is"), ({"grad_lse": lse[:, :4]}, "^grad_lse is")):
            given = {"grad_out": grad_out, "q": q, "k": k, "v": v, "out": out, "lse": lse, **spoilt}
            with self.assertRaisesRegex(ra.InputError, text):
                ra.attention_backward(**given)

    def test_a_whole_number_is_asked_for_by_name(self):
        """Not taken as the whole number below it, nor an error of many lines by pybind11."""
        q, k, v, _ = arrays(2, 5, 4)
        for word in ("prefix", "sink_tokens", "chunk", "seed", "q_offset", "same_bits", "threads"):
            for wrong in (1.5, 2**64, "a"):
                with self.subTest(word=word, wrong=wrong):
                    self.refused(ValueError, rf"^{word} is {wrong!r}: it must be a whole number from [^\n]*$", q, k, v,
                                 causal=True, **{word: wrong})
        for word in ("seq", "ulysses"):
            with self.assertRaisesRegex(ra.AgreedError, f"{word} is 2.5: it must be a whole number"):
                ra.threads(1).run(lambda group: ra.ring_attention(q, k, v, group=group, **{"seq": 5, word: 2.5}))
        for wrong in (dict(seq=2.5), dict(seq=2**63), dict(seq=5, rank=1), dict(seq=5, q_offset=2**63)):
            with self.assertRaisesRegex(ValueError, "it must be a whole number"):
                ra.threads(1).run(lambda group: ra.positions(group=group, **wrong))
        with self.assertRaisesRegex(ValueError, "positions: give "):
            ra.attention(q, k, v, positions=(range(5), np.arange(5) + 0.5))
        self.refused(ValueError, "intervals are uint64", q, k, v, intervals=np.full((5, 1, 2), 2**63, np.uint64))

    def test_nan_with_check(self):
        q, k, v, grad_out = arrays(2, 5, 4)
        k[1, 3, 2] = np.nan
        v[0, 0, 0] = np.inf
        self.refused(ValueError, r"k has 1 elements that are NaN or infinite, the first at \[0, 1, 3, 2\]", q, k, v,
                     check=True)
        self.assertTrue(np.isnan(ra.attention(q, k, v).out).any())
        bias = np.where(np.eye(5) == 1, -np.inf, 0)
        ra.attention(q, q, q, bias=bias, check=True)
        self.refused(ValueError, "bias has", q, q, q, bias=-bias, check=True)
        with self.assertRaisesRegex(ValueError, "grad_out has"):
            ra.attention_backward(k, q, q, q, *ra.attention(q, q, q), check=True)
        for at, name in enumerate(("grad_out", "q", "k", "v", "grad_lse")):
            *four, more = [np.where(at == other, np.nan, q) for other in range(5)]
            given, words = (*four, *ra.attention(q, q, q)), {"grad_lse": more[..., 0], "check": True}
            with self.assertRaisesRegex(ValueError, f"^{name} has"):
                ra.attention_backward(*given, **words)
            with self.assertRaisesRegex(ra.AgreedError, f"^rank 0: {name} has"):
                ra.threads(1).run(lambda group: ra.ring_attention_backward(*given, seq=5, group=group, **words))  # noqa: B023

    def test_kinds_of_errors(self):
        self.assertTrue(issubclass(ra.AgreedError, ra.InputError) and issubclass(ra.InputError, ValueError))
        self.assertTrue(issubclass(ra.Error, RuntimeError))
        self.assertEqual(ra.InputError.__module__, "ring_attention")


class Process(unittest.TestCase):
    def test_other_threads_run_while_it_computes(self):
        q, k, v, _ = arrays(4, 3000, 64)
        stop, counted = threading.Event(), []

        def count():
            while not stop.is_set():
                counted.append(time.monotonic())
                time.sleep(0.005)

        thread = threading.Thread(target=count)
        thread.start()
        begin = time.monotonic()
        ra.attention(q, k, v, threads=1)
        end = time.monotonic()
        stop.set()
        thread.join()
        self.assertGreater(sum(begin < at < end for at in counted), 2, f"{end - begin} s")

    @unittest.skipUnless(os.path.exists("/proc/self/statm"), "no /proc")
    def test_memory_does_not_grow(self):
        four = arrays(2, 64, 16)
        sizes = []
        for count in range(1000):
            result = ra.attention(*four[:3], causal=True, threads=1 + count % 2)
            ra.attention_backward(four[3], *four[:3], *result, causal=True, bias=np.ones((64, 64)), sink=[0, 1])
            with self.assertRaises(ra.InputError):
                ra.attention(four[0], four[1], four[2][:, :3])
            if count in (200, 999):
                gc.collect()
                sizes.append(resident_bytes())
        # One leaked result of a call would be 800 * 16 KiB = 13 MB.
        self.assertLess(sizes[1] - sizes[0], 2 << 20)

    def test_interrupt_ends_a_long_call(self):
        program = ("import signal, numpy as np, ring_attention\n"
                   "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored in a background job of a script
                   "q = np.ones((1, 400000, 64), np.float32)\n"
                   "print('begin', flush=True)\n"
                   "try: ring_attention.attention(q, q, q, threads=2)\n"
                   "except KeyboardInterrupt: print('interrupted')\n")
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True,
                              env=harness.ENVIRONMENT) as process:
            self.assertEqual(process.stdout.readline(), "begin\n")
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
            begin = time.monotonic()
            self.assertEqual(process.communicate(timeout=60)[0], "interrupted\n")
            self.assertLess(time.monotonic() - begin, 10)

    def test_everything_public_is_documented(self):
        for name in ra.__all__:
            self.assertTrue(inspect.getdoc(getattr(ra, name)) or issubclass(getattr(ra, name), Exception), name)
