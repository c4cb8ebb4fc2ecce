"""What would be a wrong number on a ring, in models of transformers: it is right, or an error says so. Ranks are threads."""

import copy
import functools
import unittest

import ring_attention as ra
import torch
import transformers as t
from ring_attention.transformers import RingCache, shard, sum_gradients
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers_layers import (Choice, Convolution, Mixing, Normalised, OwnAttention, OwnPlaces, OwnRotary, Scan, Stream, llama,
                                 of_transformers, with_layer)
from transformers_program import COMMON, SEQ, make

DOCUMENTS = [0, 17, 18, SEQ]


def tokens_of(seed=1, batch=1):
    return torch.randint(0, 64, (batch, SEQ), generator=torch.Generator().manual_seed(seed))


def on_ranks(model, work, size=2):
    """work(a copy of the model, group) on each rank."""
    models = [copy.deepcopy(model) for _ in range(size)]
    return ra.threads(size).run(lambda group: work(models[group.rank], group))


def error_of(call):
    try:
        call()
    except Exception as error:
        return type(error).__name__ + ": " + str(error)
    return "no error"


def relative(got, due):
    return float((got - due).abs().max() / due.abs().max())


class Guards(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)

    def refused(self, model, text, **words):
        """By `shard`, on all ranks with one text, and the model is as before."""
        before = model.config._attn_implementation
        for found in on_ranks(model, lambda mine, group: (error_of(lambda: shard(mine, tokens_of(), group=group, **words)),
                                                          mine.config._attn_implementation)):
            self.assertIn(text, found[0])
            self.assertTrue(found[0].startswith("NotImplementedError: "), found[0])
            self.assertNotIn("\n", found[0])
            self.assertEqual(found[1], before)

    def test_tokens_that_meet_outside_attention_are_refused(self):
        for layer in (Convolution(), Scan(), Stream(), Choice(), Normalised(64)):
            with self.subTest(layer=type(layer).__name__):
                self.refused(with_layer(layer), f"in model.layers.1.mlp ({type(layer).__name__}) tokens meet outside")
        self.refused(with_layer(OwnAttention()), "in model.layers.1.self_attn (OwnAttention) tokens meet outside")
        self.refused(with_layer(OwnRotary()), "in model.rotary_emb (OwnRotary) tokens meet outside")
        self.refused(with_layer(OwnPlaces()), "model.layers.1.mlp (OwnPlaces) takes the places of tokens")
        for model, name in of_transformers():
            with self.subTest(model=type(model).__name__):
                self.refused(model, name)
                self.refused(model, name, labels=tokens_of())
        for labels in (None, tokens_of()):
            self.refused(Mixing(llama().config), "in Mixing tokens meet outside", labels=labels)

    def test_layer_that_does_not_call_the_ring_is_named(self):
        model = llama()
        own = model.model.layers[1].self_attn

        class Skips(type(own)):
            def forward(self, hidden_states, **words):  # only while it is trained
                return (hidden_states, None) if self.training else super().forward(hidden_states, **words)

        own.__class__ = Skips
        for train in (True, False):
            text = "no error" if not train else "NotImplementedError: "
            for found in on_ranks(model.train(train), lambda mine, group: error_of(
                    lambda: mine(**shard(mine, tokens_of(), group=group)))):
                self.assertTrue(found.startswith(text), found)
                self.assertEqual("model.layers.1.self_attn (Skips) has not called the ring" in found, train)

    def test_probe_leaves_no_trace(self):
        model = llama(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}, max_position_embeddings=16)
        model.model.layers[0].eval()

        def state():
            return [torch.get_rng_state(), *[x.clone() for x in model.buffers()],
                    *[torch.tensor(float(module.training)) for module in model.modules()],
                    torch.tensor(float(model.model.rotary_emb.max_seq_len_cached))], [x.grad for x in model.parameters()]

        before = state()
        ra.threads(1).run(lambda group: shard(model, tokens_of(), group=group))
        after = state()
        self.assertTrue(all(map(torch.equal, before[0], after[0])))
        self.assertEqual(before[1], after[1])

    # ---- Numbers ---------------------------------------------------------------------------------------------------

    def same_as_alone(self, model, size=2, documents=None, tolerance=1e-5, **words):
        """The logits of a training step, and its gradients."""
        tokens, bounds = tokens_of(), documents or [0, SEQ]
        due = copy.deepcopy(model)
        pieces = [due(tokens[:, a:b], use_cache=False).logits for a, b in zip(bounds, bounds[1:])]
        sum(nn.functional.cross_entropy(one[0, :-1], tokens[0, a + 1:b], reduction="sum")
            for one, a, b in zip(pieces, bounds, bounds[1:])).backward()
        logits, labels = torch.cat(pieces, 1).detach(), SEQ - len(bounds) + 1

        def work(mine, group):
            got = mine(**shard(mine, tokens, tokens, documents=documents, group=group, **words))
            got.loss.backward()
            sum_gradients(mine, group=group)
            place = ra.positions(SEQ, placement=words.get("placement", "zigzag"), group=group)
            gradients = [relative(one.grad * labels, other.grad) for one, other in zip(mine.parameters(), due.parameters())
                         if other.grad is not None and other.grad.abs().max() > 1e-5]
            return max(relative(got.logits.detach(), logits[:, place]), *gradients)

        for error in on_ranks(model, work, size):
            self.assertLessEqual(error, tolerance)

    def test_a_rank_has_no_gradient_of_a_parameter(self):
        """As that of an expert which got none of its tokens."""
        def work(mine, group):
            for number, one in enumerate(mine.parameters()):
                one.grad = None if number == group.rank else torch.full_like(one, 10 ** group.rank)
            sum_gradients(mine, group=group)
            return [one.grad.unique().tolist() for one in mine.parameters()]

        self.assertEqual(on_ranks(nn.Linear(3, 2), work), [[[10.0], [1.0]]] * 2)

    def test_whole_sequence_decides_on_rotary_frequencies(self):
        dynamic = llama(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}, max_position_embeddings=40)
        phi = t.Phi3ForCausalLM(t.Phi3Config(**{**COMMON, "max_position_embeddings": 256}, original_max_position_embeddings=48,
                                             rope_parameters={"rope_type": "longrope", "rope_theta": 10000.0, "factor": 4.0,
                                                              "short_factor": [1.0] * 8, "long_factor": [3.0] * 8,
                                                              "original_max_position_embeddings": 48}))
        for model in (dynamic, phi):
            for words in ({}, {"placement": "contiguous"}):
                for size in (2, 3):
                    with self.subTest(model=type(model).__name__, size=size, **words):
                        self.same_as_alone(model, size, **words)
            with self.subTest(model=type(model).__name__, packed=True):
                self.refused(model, "depend on the length from", documents=[0, 10, SEQ])
                self.same_as_alone(model, documents=DOCUMENTS[:-1] + [40, SEQ])

    def test_generate_says_why_longrope_does_not_go_on(self):
        model = t.Phi3ForCausalLM(t.Phi3Config(**COMMON, original_max_position_embeddings=SEQ + 2, rope_parameters={
            "rope_type": "longrope", "rope_theta": 10000.0, "factor": 4.0, "short_factor": [1.0] * 8, "long_factor": [3.0] * 8,
            "original_max_position_embeddings": SEQ + 2})).eval()

        def work(mine, group):
            cache, prompt = RingCache(), tokens_of()
            with torch.no_grad():
                mine(**shard(mine, prompt[:, :-1], cache=cache, group=group))
            return error_of(lambda: mine.generate(prompt, cache=cache, max_new_tokens=9))

        for text in on_ranks(model, work):
            self.assertIn("NotImplementedError", text)
            self.assertIn("computes the keys again where its rotary frequencies change", text)

    def test_generate_of_a_hybrid_is_refused(self):
        for model, _ in [*of_transformers()][:1]:
            for text in on_ranks(model, lambda mine, group: error_of(
                    lambda: mine.generate(tokens_of(), cache=RingCache(), max_new_tokens=2))):
                self.assertIn("NotImplementedError", text)
                self.assertIn("RingCache has the keys and values of attention", text)

    def test_loss_that_balances_experts_is_refused(self):
        torch.manual_seed(0)
        model = t.MixtralForCausalLM(t.MixtralConfig(**COMMON, num_local_experts=4))
        self.same_as_alone(model)
        for words in ({"output_router_logits": True}, {"output_router_logits": True, "return_dict": False}):
            for text in on_ranks(model, lambda mine, group: error_of(
                    lambda: mine(**shard(mine, tokens_of(), tokens_of(), group=group), **words))):
                self.assertIn("NotImplementedError", text)
                self.assertIn("balances experts", text)

    def test_loss_that_is_not_a_share_is_refused(self):
        model = llama()
        own = type(model)

        class OwnLoss(own):
            def forward(self, labels=None, shift_labels=None, num_items_in_batch=None, **words):
                result = super().forward(**words)
                if labels is not None:
                    result.loss = nn.functional.cross_entropy(result.logits[0, :-1], labels[0, 1:])
                return result

        model.__class__ = OwnLoss
        self.refused(model, "OwnLoss does not divide the loss of shift_labels by num_items_in_batch", labels=tokens_of())
        self.assertEqual(on_ranks(model, lambda mine, group: error_of(lambda: mine(**shard(mine, tokens_of(), group=group)))),
                         ["no error"] * 2)

    def test_checkpointing_uses_the_documents_of_its_call(self):
        def work(mine, group, how):
            losses = []
            for documents in (DOCUMENTS, [0, 40, SEQ]):
                part = shard(mine, tokens_of(), tokens_of(), documents=documents, group=group)
                call = functools.partial(checkpoint, mine, use_reentrant=False) if how == "whole" else mine
                losses.append(call(**part).loss)
            sum(losses).backward()
            sum_gradients(mine, group=group)
            return [one.grad for one in mine.parameters()]

        for how in ("whole", True, False):
            plain, kept = llama(), llama()
            if how != "whole":
                kept.activation_checkpointing_enable({"use_reentrant": how})
                kept.train()
            due = on_ranks(plain, lambda mine, group: work(mine, group, None))
            got = on_ranks(kept, lambda mine, group: work(mine, group, how))
            with self.subTest(how=how):
                for one, other in zip(got[0], due[0]):
                    self.assertLessEqual(relative(one, other), 1e-6)

    def test_call_that_shard_has_not_prepared_is_an_error(self):
        def work(mine, group):
            part = shard(mine, tokens_of(), group=group)
            texts = [error_of(lambda: mine(part["input_ids"])), error_of(lambda: mine.model(part["input_ids"]))]
            texts.append(error_of(lambda: mine(**{**part, "position_ids": part["position_ids"] % 20})))
            right = mine(**part).logits
            copied = mine(**{name: copy.copy(value) for name, value in part.items()}).logits
            base = mine.lm_head(mine.model(**part).last_hidden_state)
            twin = copy.deepcopy(mine)
            again = twin(**shard(twin, tokens_of(), group=group)).logits
            mine.set_attn_implementation("sdpa")
            texts += [error_of(lambda: mine(**part)), error_of(lambda: mine(tokens_of()))]
            return texts, all(torch.equal(right, one) for one in (copied, base, again))

        for texts, same in on_ranks(llama(), work):
            for text, due in zip(texts, ("first call shard", "first call shard", "not those of shard", "computes with 'sdpa' since",
                                         "no error"), strict=True):
                self.assertIn(due, text)
            self.assertTrue(same)

    def test_ranks_have_one_batch(self):
        def work(mine, group):
            first, other = tokens_of(), tokens_of(2 + group.rank)
            texts = [error_of(lambda: shard(mine, *given, group=group)) for given in ((other,), (first, other), (first, first))]
            return texts

        for text, labels, right in on_ranks(llama(), work):
            for one in (text, labels):
                self.assertIn("AgreedError", one)
                self.assertIn("input_ids, labels and documents are the same on all ranks of a ring", one)
            self.assertEqual(right, "no error")

    def test_refusal_on_one_rank_ends_all(self):
        def work(mine, group):
            part = shard(mine, tokens_of(), group=group)
            bad = dict(part)
            if group.rank == 1:
                bad["attention_mask"] = part["attention_mask"].clone()
                bad["attention_mask"][:, 0] = 0  # padding
            text = error_of(lambda: mine(**bad))
            if group.rank == 1:
                bad = dict(part, tomorrow=5)
            else:
                bad = part
            return text, error_of(lambda: mine(**bad)), error_of(lambda: mine(**part))

        found = on_ranks(llama(), work)
        self.assertEqual(found[0], found[1])
        self.assertIn("NotImplementedError: rank 1: attn_implementation=\"ring\": padding", found[0][0])
        self.assertIn("the model asks for tomorrow", found[0][1])
        self.assertEqual(found[0][2], "no error")

    def test_mask_that_no_attention_gets_is_not_refused(self):
        torch.manual_seed(0)
        self.same_as_alone(t.Qwen2MoeForCausalLM(t.Qwen2MoeConfig(**COMMON, moe_intermediate_size=32,
                                                                  shared_expert_intermediate_size=32, num_experts=4)))

    def test_compiled_model(self):
        def work(mine, group):
            compiled = torch.compile(mine, backend="eager")
            got = [compiled(**shard(compiled, tokens_of(seed), group=group)).logits for seed in (1, 2)]
            due = [mine(**shard(mine, tokens_of(seed), group=group)).logits for seed in (1, 2)]
            return all(map(torch.equal, got, due))

        self.assertEqual(on_ranks(make("mistral"), work, 1), [True])
