"""`ring-attention plan`: its accounts add up, names and numbers that cannot be get one line, and it is quick."""

import json
import math
import resource

import harness
import numpy as np
import pytest


def plan_text(program, *words):
    return program.run_well(1, "plan", *words, launcher=False).out


def plan(program, *words):
    return json.loads(plan_text(program, *words, "--json"))


def check_account(mesh, ranks):
    sizes = mesh["mesh"]
    assert math.prod(sizes.values()) == ranks
    exposed = sum(mesh["time"].get(part, 0) for part in ("tensor", "all-to-all", "ring", "weights", "stages"))
    assert [sum(mesh["memory"].values()) / mesh["memory_bytes"], sum(mesh["time"].values()) / mesh["seconds"],
            exposed - mesh["exposed_seconds"]] == pytest.approx([1, 1, 0], abs=1e-7)


@pytest.mark.parametrize("phase", ("training", "prefill", "decode"))
@pytest.mark.parametrize("model", ("llama-3-8b", "llama-65b"))
@pytest.mark.parametrize("machine", ("8xa100", "tpu-v4"))
def test_the_accounts_add_up(program, phase, model, machine):
    report = plan(program, "--phase", phase, "--model", model, "--machine", machine, "--ranks", 64)
    tokens = report["batch"] * (1 if phase == "decode" else report["context"])
    assert report["tokens_per_second"] * report["best"]["seconds"] == pytest.approx(tokens)
    for mesh in (report["best"], *report["neighbours"]):
        check_account(mesh, 64)
        if report["best"]["fits"] and mesh["fits"]:
            assert mesh["seconds"] >= report["best"]["seconds"]


def test_the_longest_context_fits_and_the_next_does_not(program):
    words = ("--model", "llama-3-70b", "--ranks", 128)
    tokens = int(plan(program, *words)["longest_context"])
    assert plan(program, *words, "--context", tokens)["best"]["fits"]
    beyond = plan(program, *words, "--context", tokens + 1)
    assert (beyond["best"]["fits"], beyond["enough_ranks"]) == (False, 256)


def test_numbers_replace_those_of_a_name(program):
    shape = "--layers 32 --hidden 4096 --heads 32 --kv-heads 8 --ffn 14336 --vocab 128256".split()
    named, given = plan(program, "--model", "llama-3-8b"), plan(program, "--model", "llama-7b", *shape)
    assert (named["parameters"], named["best"]) == (given["parameters"], given["best"])
    slow = plan(program, "--flops", 100)
    assert slow["best"]["time"]["attention"] > 6 * named["best"]["time"]["attention"]
    fast = plan(program, "--flops", 5000)  # above the 989 of the data sheet: then the peak
    share = [report["utilisation"] / report["tokens_per_second"] for report in (named, fast)]
    assert share[0] / share[1] == pytest.approx(5000 / 989)


CONFIG = {"model_type": "own", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
          "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "sliding_window": 4096, "head_dim": 256}


@pytest.mark.parametrize("config", (CONFIG, {"text_config": CONFIG}))
def test_a_configuration_of_hugging_face(program, config):
    program.write("config.json", json.dumps(config))
    report = plan(program, "--config", "config.json")
    assert report["best"] == plan(program, "--model", "llama-3-8b")["best"]
    assert "own, not counted: head_dim 256, not counted: sliding_window 4096" in json.dumps(report)


@pytest.mark.parametrize("text, words, said", (
    (json.dumps(CONFIG), ("--model", "llama-7b"), ("--model",)),
    ("{}", (), ("--config", "no integer num_hidden_layers")),
    ("[", (), ("--config", "is not a JSON object")),
))
def test_a_bad_configuration(program, text, words, said):
    program.write("config.json", text)
    program.refuse(1, ("plan", "--config", "config.json", *words), said)


def test_the_simulation_is_near_the_closed_form(program):
    best = plan(program, "--model", "llama-3-70b", "--context", 1 << 20, "--ranks", 256)["best"]
    assert best["simulated_seconds"] / best["seconds"] == pytest.approx(1, abs=0.02)


def test_a_pipeline(program):
    words = ("--model", "llama-3-405b", "--context", 8192, "--batch", 2048, "--ranks", 16384, "--tensor", 8, "--pipeline", 16)
    report = plan(program, *words, "--chunks", 8, "--keep-activations")
    check_account(report["best"], 16384)
    assert report["best"]["mesh"]["pipeline"] == 16
    time = report["best"]["time"]
    busy = report["best"]["seconds"] - time["bubble"] - time["weights"]
    micro_batches = 2048 / report["best"]["mesh"]["data"]
    assert time["bubble"] / busy == pytest.approx(15 / (8 * micro_batches), abs=1e-7)
    assert 0.4 < report["utilisation"] < 0.5  # 41 % in arXiv 2407.21783, table 4


@pytest.mark.parametrize("words", (("--ranks", 8192), ("--ranks", 10000, "--tensor", 1, "--ulysses", 1, "--batch", 2)))
def test_ten_thousand_ranks_take_two_seconds(program, words):
    """Ranks 8192 and 10000; the second has a ring of all of them."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    plan(program, "--model", "llama-3-405b", "--context", 100_000_000, *words)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # The processor's time: the machine may have other work.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2 * harness.SLOWNESS


@pytest.mark.parametrize("words", ("--causal --documents cu.npy", "--window 511,0", "--causal", "--causal --prefix 8192",
                                   "--window 1023,0 --sink-tokens 4"))
def test_placements(program, words):
    """A short window is contiguous; documents are within 8 % of the bound, and no worse than the others."""
    program.save(cu=np.array([0, 4915, 8192, 14745, 16384]))
    report = plan(program, "placements", *words.split())
    rows = report["placements"]
    assert sorted(rows) == ["balanced", "contiguous", "striped", "zigzag"]
    assert rows["balanced"]["finish"] <= 1.08 * report["bound"]
    for row in rows.values():
        assert row["busiest"] <= row["finish"]
        assert rows["balanced"]["finish"] <= 1.03 * row["finish"] + 1e-9
    assert words != "--window 511,0" or rows["balanced"] == rows["contiguous"]
