"""Residuals that were planted come back: from a step log, from trials; what cannot be told is not learned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from optimizer.engines.engine import Instance, Placement
from optimizer.engines.simulator.engine import SimulatedEngine, SimulatorSpec
from optimizer.engines.simulator.fit_steps import fit_steps, predicted_s
from optimizer.engines.simulator.fit_trials import MeasuredTrial, fit_trials
from optimizer.engines.simulator.residuals import NONE, Residuals, by_tp_from, corrected, residuals_for
from optimizer.engines.simulator.step_time import Roofline, StepShape, StepTimeModel
from optimizer.engines.simulator.steps import StepRecord, lines_of, read_steps, step_of
from optimizer.errors import UserError
from search_spaces.config import Config
from search_spaces.hardware import find_gpu
from search_spaces.known_models import find_model
from tests.engines.simulated import plan, trace

MODEL, GPU = find_model("Llama-3.1-8B"), find_gpu("A100-40")
SPEC = SimulatorSpec(MODEL, GPU, noise=0.0)


def model_of(tp: int) -> StepTimeModel:
    return Roofline(MODEL, GPU, StepShape(max_num_batched_tokens=2048, max_num_seqs=64, tp=tp))


def log(planted: Residuals, n: int = 200, noise: float = 0.05, tp: int = 1, seed: int = 0) -> list[StepRecord]:
    """Steps as an engine with these residuals would take them, one in twenty with a hiccup of threefold time."""
    rng, model = np.random.default_rng(seed), corrected(model_of(tp), planted)
    found = []
    for index in range(n):
        n_decodes = int(rng.integers(1, 64))
        prefills = ((int(rng.integers(100, 1500)), 0),) if rng.random() < 0.4 else ()
        plain = StepRecord(index, 1.0, prefills, n_decodes, (n_decodes * int(rng.integers(100, 2000)),), tp=tp)
        hiccup = 3.0 if rng.random() < 0.05 else 1.0
        found.append(replace(plain, seconds=predicted_s(plain, model) * float(rng.lognormal(0, noise)) * hiccup))
    return found


@pytest.mark.parametrize("planted", [Residuals(1.3), Residuals(0.8, 1.25), Residuals(2.5, 0.7)])
def test_planted_factors_come_back_from_a_step_log(planted: Residuals) -> None:
    (fitted,) = fit_steps(log(planted), model_of)
    assert fitted.residuals.step == pytest.approx(planted.step, rel=0.02)
    assert fitted.residuals.prefill == pytest.approx(planted.prefill, rel=0.03)
    before, after, held_out = (errors[0] for errors in (fitted.before, fitted.after, fitted.held_out))
    assert after.median < 0.06 < before.median and held_out.median < 0.06
    assert abs(after.bias) < 0.02


def test_every_tensor_parallel_size_has_its_own() -> None:
    steps = [*log(Residuals(1.1), tp=1), *log(Residuals(1.4), tp=2, seed=1)]
    fitted = fit_steps(steps, model_of)
    assert [f.tp for f in fitted] == [1, 2]
    assert [f.residuals.step for f in fitted] == pytest.approx([1.1, 1.4], rel=0.02)
    learned = {f.tp: f.residuals for f in fitted}
    assert residuals_for(learned, 2) == learned[2]
    assert residuals_for(learned, 8) == Residuals(step=learned[2].step), "host and kernels cost too much there as well"
    assert residuals_for({4: Residuals(1.2)}, 2) == NONE


def test_what_a_log_cannot_tell_is_not_learned() -> None:
    (few,) = fit_steps(log(Residuals(1.3), n=6), model_of)
    assert few.residuals == NONE and "at least 10 are needed" in few.remarks[0] and not few.held_out
    decodes = [s for s in log(Residuals(1.3)) if not s.prefills]
    (one_kind,) = fit_steps(decodes, model_of)
    assert one_kind.residuals.prefill == 1.0 and "one factor for all steps" in one_kind.remarks[0]
    assert one_kind.residuals.step == pytest.approx(1.3, rel=0.02)


def test_an_implausible_factor_is_held_and_said() -> None:
    slow = [replace(s, seconds=100 * s.seconds) for s in log(NONE)]
    (fitted,) = fit_steps(slow, model_of)
    assert fitted.residuals.step == 20.0 and "is it another card, model, dtype or TP" in " ".join(fitted.remarks)


# ---- trials ----------------------------------------------------------------------------------------------------------


def ran(planted: Residuals, seats: int, seed: int, prompts: tuple[int, int] = (20, 1500)) -> MeasuredTrial:
    """A trial of an engine that has these residuals, and the noise of a real one."""
    config = Config({"max_num_batched_tokens": 2048, "max_num_seqs": seats, "max_model_len": 4096})
    placement = Placement((Instance("server", config, ("default",)),))
    engine = SimulatedEngine(replace(SPEC, noise=1.0, residuals={1: planted}))
    engine.boot(placement, seed)
    steady = plan(trace(120, 60.0, seed=5, prompts=prompts))
    full = plan(trace(300, 1.0, seed=6, prompts=prompts), "saturation")
    plans = {"steady": steady, "saturation": full}
    return MeasuredTrial(f"trial {seats}", placement, plans, {name: engine.replay(p) for name, p in plans.items()})  # type: ignore[arg-type, misc]


def test_planted_factors_come_back_from_trials() -> None:
    planted = Residuals(1.4, 1.2, 0.030)
    trials = [ran(planted, seats, seats) for seats in (8, 16, 32, 48)]
    (fitted,) = fit_trials(trials, SPEC)
    assert fitted.n == 4
    assert fitted.residuals.step == pytest.approx(1.4, rel=0.08), "the step factor carries part of the prefills"
    by_name = {e.figure: e for e in fitted.before}, {e.figure: e for e in fitted.after}
    for name in ("TPOT", "throughput"):
        assert by_name[0][name].median > 0.2 and by_name[1][name].median < 0.08, name
    assert by_name[1]["TTFT"].median < by_name[0]["TTFT"].median
    assert {e.figure for e in fitted.held_out} == {"TPOT", "throughput", "TTFT"}
    assert all(e.median < 0.1 for e in fitted.held_out if e.figure != "TTFT")


def test_a_planted_step_factor_comes_back_within_a_percent_and_predicts_what_was_left_out() -> None:
    (fitted,) = fit_trials([ran(Residuals(1.4), seats, seats) for seats in (8, 16, 32)], SPEC)
    assert fitted.residuals.step == pytest.approx(1.4, rel=0.01)
    most = {"TPOT": 0.03, "throughput": 0.03, "TTFT": 0.05}  # the engine's own noise, of two trials that were kept
    assert all(e.median < most[e.figure] for e in fitted.held_out) and all(e.median > 0.2 for e in fitted.before)


def test_one_trial_tells_one_factor() -> None:
    heard: list[str] = []
    (fitted,) = fit_trials([ran(Residuals(1.3), 16, 1)], SPEC, heard.append)
    assert fitted.residuals == Residuals(step=fitted.residuals.step) and fitted.residuals.step == pytest.approx(
        1.3, rel=0.03
    )
    assert not fitted.held_out and heard == ["trial 16 (1/1)"]
    assert any("only the step factor: 1 trials" in text for text in fitted.remarks)


def test_a_perfect_simulator_has_nothing_to_learn() -> None:
    (fitted,) = fit_trials([ran(NONE, seats, seats) for seats in (8, 16, 32)], SPEC)
    assert fitted.residuals.step == pytest.approx(1.0, abs=0.02)
    assert fitted.residuals.prefill == pytest.approx(1.0, abs=0.05)
    assert abs(fitted.residuals.front_end_s) < 0.004


def test_a_trial_that_cannot_be_simulated_is_left_out() -> None:
    good = ran(Residuals(1.3), 16, 1)
    config = Config({**good.placement.instances[0].config, "kv_cache_memory_bytes": 10**12})
    impossible = replace(good, name="trial 99", placement=Placement((Instance("server", config, ("default",)),)))
    (fitted,) = fit_trials([good, impossible], SPEC)
    assert fitted.n == 1 and any(text.startswith("trial 99 is left out: ") for text in fitted.remarks)


# ---- files -----------------------------------------------------------------------------------------------------------


def test_a_step_log_comes_back_from_its_file(tmp_path: Path) -> None:
    steps = log(Residuals(1.2), n=20)
    (tmp_path / "steps.jsonl").write_text("".join(lines_of(steps)))
    assert read_steps(tmp_path / "steps.jsonl") == tuple(steps)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no step"),
        ("{}\n", "line 1: 'seconds' is missing"),
        ('{"seconds": 0, "n_decodes": 1, "contexts": [5]}\n', "line 1: not a step"),
        ('{"seconds": 0.1}\n', "a step without a token"),
        ('{"seconds": 0.1, "n_decodes": 1, "contexts": [5]}\nnonsense\n', "line 2: not a step"),
        ("[1]\n", "line 1: not a step (is no object)"),
        ('{"seconds": 0.1, "prefills": [[0, 5]]}\n', "line 1: not a step"),
        ('{"seconds": NaN, "n_decodes": 1, "contexts": [5]}\n', "line 1: not a step"),
    ],
)
def test_a_bad_log_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        read_steps(path)
    assert said in str(error.value) and str(path) in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(UserError, match="No such file"):
        read_steps(tmp_path / "none.jsonl")


def test_residuals_refuse_what_is_none() -> None:
    for wrong in ({"step": 0.0}, {"step": float("nan")}, {"prefill": 100.0}, {"front_end_s": 9.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Residuals(**wrong)
    assert by_tp_from({"2": {"step": 1.5, "prefill": 1, "front_end_s": 0}}) == {2: Residuals(1.5)}
    assert step_of({"seconds": 0.1, "n_decodes": 1, "contexts": [3], "colour": "red"}).n_decodes == 1
