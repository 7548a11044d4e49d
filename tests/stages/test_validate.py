import json
import random
from dataclasses import replace

import pytest
from transformers import AutoTokenizer

from sweetrl.backend import Backend
from sweetrl.backend.checks import function_name
from sweetrl.backend.suite import ScriptedSimulator, generate
from sweetrl.backend.suite.agents import Demonstrator, OracleAgent
from sweetrl.colbench.dialogue import Environment
from sweetrl.colbench.scoring import PRICE
from sweetrl.colbench.store import TrajectoryStore
from sweetrl.config.settings import parse_settings
from sweetrl.errors import UserError
from sweetrl.paths import ACCEPTED, DATA_DOCS, DATA_QUALITY, PAIRS, QUALITY_HISTORY, TRAJECTORIES, VALIDATION
from sweetrl.stages.validate import validate
from sweetrl.sweet.pairs import read_pairs
from sweetrl.types import AgentTurn, Message, TestResult, Trajectory

TASKS, ATTEMPTS, SHARD = 6, 3, 8


@pytest.fixture(scope="module")
def batch(tiny_model):
    """Honest dialogues: TASKS x ATTEMPTS, attempt 0 by the oracle with reward 1, the others imperfect."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    trajectories = []
    for number, task in enumerate(generate("train", TASKS, seed=5)):
        for attempt in range(ATTEMPTS):
            seed = number * 10 + attempt + 1
            agent = (
                OracleAgent()
                if attempt == 0
                else Demonstrator(7, random.Random(seed), 0.5, follow=0.7, slip=0.05, stop=0.05)
            )
            environment = Environment(task, Backend(), ScriptedSimulator(), seed=seed)
            turns = []
            while not environment.done:
                raw = agent.act(task, environment.messages)
                ids = (*tokenizer.encode(raw, add_special_tokens=False), tokenizer.eos_token_id)
                turns.append(AgentTurn(len(environment.messages), raw, ids, (-0.5,) * len(ids), "stop"))
                environment.step(raw)
            passed = 10 if attempt == 0 else 3 + attempt
            tests = tuple(
                TestResult(name, index < passed, "passed" if index < passed else "wrong")
                for index, (name, _) in enumerate(task.test_cases)
            )
            trajectories.append(
                Trajectory(
                    task=task,
                    attempt=attempt,
                    messages=environment.messages,
                    turns=tuple(turns),
                    answer=environment.answer,
                    reward=passed / 10,
                    tests=tests,
                    outcome=environment.outcome,
                    seed=seed,
                    policy="base",
                    simulator="scripted",
                )
            )
    return trajectories


@pytest.fixture
def settings(tiny_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    return make_settings(tiny_model)


def make_settings(tiny_model, **validation):
    values = {
        "model": {"base": str(tiny_model)},
        "collect": {"attempts": ATTEMPTS},
        "validate": {"minimum_pairs": 5, **validation},
    }
    return parse_settings(values)


def write(trajectories):
    store = TrajectoryStore(TRAJECTORIES)
    for start in range(0, len(trajectories), SHARD):
        store.write_shard(start // SHARD, trajectories[start : start + SHARD])


def changed(batch, index, **values):
    """The batch with one dialogue changed; index 10 is task 3's attempt 1, row 2 of the second shard."""
    result = list(batch)
    result[index] = replace(result[index], **values)
    return result


def failure(settings):
    with pytest.raises(UserError) as error:
        validate(settings)
    assert not PAIRS.exists() and not VALIDATION.exists() and not ACCEPTED.exists()
    assert (DATA_DOCS / "index.html").exists()
    assert "reports/data-quality.html" in str(error.value) and "not met" in DATA_QUALITY.read_text()
    return str(error.value)


def test_a_good_batch_is_accepted_with_equal_bytes_each_time(batch, settings, capsys):
    write(batch)
    validate(settings)
    pairs = read_pairs(PAIRS)
    assert len(pairs) == TASKS * (ATTEMPTS - 1)
    assert all(pair.chosen_reward == 1.0 and pair.chosen_attempt == 0 for pair in pairs)
    report = json.loads(VALIDATION.read_text())
    assert report["batch"]["trajectories"] == TASKS * ATTEMPTS and report["batch"]["tasks"] == TASKS
    assert report["pairs"]["pairs"] == len(pairs)
    assert {"turn_order", "leak", "tokens", "enough_pairs"} <= {verdict["rule"] for verdict in report["expectations"]}
    assert all(verdict["unexpected"] == 0 for verdict in report["expectations"])
    assert list(DATA_DOCS.rglob("*trajectories*"))
    assert "18 dialogues at 6 tasks hold all" in capsys.readouterr().out

    page = DATA_QUALITY.read_text()
    assert (
        f"All {len(report['expectations'])} expectations hold." in page and "0 accepted batches before this one" in page
    )
    first = {path: path.read_bytes() for path in (PAIRS, VALIDATION, ACCEPTED, QUALITY_HISTORY, DATA_QUALITY)}
    validate(settings)  # the same batch again: compared with what it was compared with before, i.e. nothing
    assert {path: path.read_bytes() for path in first} == first


def user_says(trajectory, text):
    messages = list(trajectory.messages)
    messages[2] = Message("user", text)
    return tuple(messages)


def corrupt(batch, kind):
    """The batch with dialogue 10 broken in one way, and the words that must be in the message."""
    dialogue = batch[10]
    messages, turns, reference = dialogue.messages, dialogue.turns, dialogue.task.ground_truth
    line = next(line for line in reference.splitlines() if "=" in line and len(line.strip()) >= 12)
    cases = {
        "order": ({"messages": (messages[0], *messages[2:])}, "message 1 is by the user, expected the assistant"),
        "unfinished": ({"messages": messages[:-1]}, "the last, is by the user"),
        "request": (
            {"messages": (Message("user", "Do something."), *messages[1:])},
            "message 0 is not the task's request",
        ),
        "reward": ({"reward": 1.5, "tests": ()}, "rewards must lie in 0 to 1"),
        "unscored": ({"reward": None}, "it has no reward"),
        "tests": ({"reward": 0.9}, "the reward is 0.9, but 4 of 10 tests passed"),
        "code": ({"messages": user_says(dialogue, f"Use {line.strip()}")}, "message 2 (user) holds line"),
        "test call": ({"messages": user_says(dialogue, dialogue.task.test_cases[3][1])}, "call of hidden test test4"),
        "prefix": (
            {"messages": user_says(dialogue, f"The finished program is:\n{reference}")},
            "message 2 (user) holds",
        ),
        "tokens": (
            {"turns": (replace(turns[0], token_ids=(7, 8, 9), logprobs=()), *turns[1:])},
            "turn 1: the token ids do not decode to the raw reply",
        ),
        "raw": ({"turns": (replace(turns[0], raw="Hello?"), *turns[1:])}, "the message differs from the raw"),
        "attempt": ({"attempt": 2}, "no attempt at a task may be there twice"),
        "number": ({"attempt": 7}, "attempts must be numbered 0 to 2"),
        "answer": ({"answer": "def stolen(): ..."}, "the answer is not what the last message says"),
        "seed": ({"seed": batch[9].seed}, "no two sampled dialogues may share a seed"),
    }
    values, words = cases[kind]
    return changed(batch, 10, **values), words


KINDS = ["order", "unfinished", "request", "reward", "unscored", "tests", "code", "test call", "prefix", "tokens"]
KINDS += ["raw", "attempt", "number", "answer", "seed"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_corrupted_dialogue_stops_the_run_and_is_named(batch, settings, kind):
    broken, words = corrupt(batch, kind)
    write(broken)
    message = failure(settings)
    assert words in message
    assert f"task {batch[10].task.id} attempt {broken[10].attempt} (shard-00001.parquet row 2)" in message


def test_every_failed_expectation_is_one_line(batch, settings):
    broken = changed(changed(batch, 10, reward=1.5), 4, reward=None)
    write(broken)
    lines = failure(settings).splitlines()
    assert len(lines) == 4  # the heading, reward bounds, scored, tests against reward
    assert all(line.startswith("- trajectories: ") for line in lines[1:])
    assert f"task {batch[4].task.id} attempt 1 (shard-00000.parquet row 4)" in "".join(lines)


def test_duplicates_beyond_the_share(batch, settings, tiny_model):
    copies = list(batch)
    for index in range(12):
        own = {name: getattr(batch[index], name) for name in ("attempt", "seed", "reward", "tests")}
        copies[index] = replace(batch[index - index % ATTEMPTS], **own)
    write(copies)  # 8 of 18 repeat attempt 0
    validate(make_settings(tiny_model, duplicate_share=0.5))
    for path in (PAIRS, VALIDATION, ACCEPTED):
        path.unlink()
    message = failure(make_settings(tiny_model, duplicate_share=0.4))
    assert "at most 40% of the attempts may repeat another" in message and "8 of 18" in message
    assert f"task {batch[1].task.id} attempt 1 (shard-00000.parquet row 1): the same words as attempt 0" in message


def test_lost_dialogues(batch, settings, tiny_model):
    values = {"outcome": "lost", "reward": None, "answer": None, "tests": ()}
    write(changed(batch, 10, **values, error="<img src=x onerror=alert(1)> the server is gone"))
    message = failure(settings)
    assert "at most 5% of the dialogues may be lost" in message and "<img src=x onerror=alert(1)> the serv" in message
    pages = [path.read_text() for path in (DATA_QUALITY, *DATA_DOCS.rglob("*.html"))]
    assert any("the server is gone" in page for page in pages[1:]), "all rows are in the Data Docs"
    assert not any("<img src=x" in page for page in pages), "others' words are no markup"
    validate(make_settings(tiny_model, lost_share=0.1))
    assert len(read_pairs(PAIRS)) == TASKS * (ATTEMPTS - 1) - 1


def test_too_few_pairs_stop_methods_that_learn_from_pairs(batch, settings, tiny_model):
    write(batch)
    few = make_settings(tiny_model, minimum_pairs=50)
    assert "at least 50 preference pairs (validate.minimum_pairs), found 12; raise collect.tasks" in failure(few)
    validate(few.model_copy(update={"method": "rft"}))
    assert len(read_pairs(PAIRS)) == TASKS * (ATTEMPTS - 1)
    assert "enough_pairs" not in VALIDATION.read_text()


def test_a_reward_of_ones_own_has_no_bounds(batch, settings, own_code, tmp_path):
    own_code(tmp_path, "def brief(task, dialogue):\n    return 1.5\n")
    write(changed(batch, 10, reward=1.5, tests=()))
    assert "rewards must lie in 0 to 1" in failure(settings)
    validate(settings.model_copy(update={"reward": settings.reward.model_copy(update={"function": "mine:brief"})}))


def test_tests_passed_are_compared_with_the_reward_before_its_price(batch, settings):
    def paid(dialogue, cost):
        questions = sum(message.role == "assistant" for message in dialogue.messages) - 1
        parts = {"task": dialogue.reward, PRICE: -cost * questions}
        return replace(dialogue, reward=dialogue.reward - cost * questions, parts=parts, solved=dialogue.success)

    cost = 0.02
    priced = settings.model_copy(update={"reward": settings.reward.model_copy(update={"turn_cost": cost})})
    write([paid(dialogue, cost) for dialogue in batch])
    validate(priced)
    assert (
        len(read_pairs(PAIRS)) == TASKS * (ATTEMPTS - 1) and max(pair.chosen_reward for pair in read_pairs(PAIRS)) < 1
    )
    for path in (PAIRS, VALIDATION, ACCEPTED):
        path.unlink()
    wrong = paid(replace(batch[10], reward=0.9), cost)
    write([wrong if index == 10 else paid(other, cost) for index, other in enumerate(batch)])
    assert "the reward is 0.9, but 4 of 10 tests passed" in failure(priced)


def with_reference(batch, number, body):
    """The batch with another reference for task `number`: a function that returns `body`."""
    task = batch[number * ATTEMPTS].task
    name = function_name([call for _, call in task.test_cases])
    other = replace(task, ground_truth=f"import random\ndef {name}(*values, **named): return {body}")
    return [replace(dialogue, task=other) if dialogue.task == task else dialogue for dialogue in batch]


def test_a_reference_that_draws_at_random_is_named_with_its_row(batch, settings):
    write(with_reference(batch, 3, "random.random()"))
    message = failure(settings)
    assert f"task {batch[10].task.id} attempt 1 (shard-00001.parquet row 2): its reference gives `" in message
    assert "3 of 18 rows" in message and "make it a function of its arguments, or leave the task out" in message


def test_a_reference_that_asks_for_the_order_of_a_set_is_named_and_taken(batch, settings, caplog):
    write(with_reference(batch, 3, "list({'apple', 'pear', 'plum', 'fig', 'kiwi'})"))
    validate(settings)
    assert f"or leave the tasks out: {batch[9].task.id} (shard-00001.parquet row 1)" in caplog.text


def test_a_shard_without_a_column_or_without_sense(batch, settings):
    import pyarrow.parquet as pq

    write(batch)
    path = TRAJECTORIES / "shard-00001.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["reward"]), path)
    assert "shard-00001.parquet: column `reward` is missing" in failure(settings)
    path.write_bytes(b"PAR1 and then the disk was full")
    assert "shard-00001.parquet: it is no complete Parquet file" in failure(settings)


def test_a_batch_is_compared_with_the_one_accepted_before(batch, settings, tiny_model):
    write(batch)
    validate(settings)
    before = ACCEPTED.read_bytes()

    worse = [
        replace(dialogue, reward=0.1, tests=tuple(replace(test, passed=i < 1) for i, test in enumerate(dialogue.tests)))
        if dialogue.attempt
        else dialogue
        for dialogue in batch
    ]
    write(worse)
    tight = make_settings(tiny_model, reward_shift=0.01)
    PAIRS.unlink()
    with pytest.raises(UserError, match=r"mean reward may differ by at most 0.01 .* accepted batch's 0.633, found 0.4"):
        validate(tight)
    assert ACCEPTED.read_bytes() == before and not PAIRS.exists()

    page = DATA_QUALITY.read_text()
    assert 'data-name="observed">0.4</td><td class="n" data-name="allowed">0.6' in page, "a bound beside what was seen"
    validate(make_settings(tiny_model, reward_shift=0.5))
    assert len(json.loads(QUALITY_HISTORY.read_text())) == 2
    assert "1 accepted batch before this one" in DATA_QUALITY.read_text()
    accepted = json.loads(ACCEPTED.read_text())
    assert accepted["accepted"]["mean_reward"] == pytest.approx(0.4)
    assert accepted["previous"]["mean_reward"] == pytest.approx(19 / 30)
    assert "shift" not in VALIDATION.read_text()  # the outputs do not depend on the batch before

    with pytest.raises(UserError, match=r"accepted batch's 0\.633"):  # accepted meanwhile, and still compared
        validate(tight)
    ACCEPTED.write_text(json.dumps(accepted | {"rewarded": ["tickets:Tickets", ""]}))
    validate(tight)  # a batch of another domain is no measure of this one
    assert json.loads(ACCEPTED.read_text())["previous"] is None


def test_a_broken_summary_is_named(batch, settings):
    write(batch)
    ACCEPTED.write_text('{"accepted": {}}')
    with pytest.raises(UserError, match=r"data/accepted.json: this is not a batch's summary"):
        validate(settings)
