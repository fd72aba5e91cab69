import pytest

from lmpool.bench.study.plan import Statistic
from lmpool.bench.study.plan_text import PlanError, parse_plan
from tests.bench.study.made import PLAN


def test_a_plan_is_read_with_its_rules() -> None:
    plan = parse_plan(PLAN.encode(), "plan.toml")
    assert plan.arms == ("round-robin", "default")
    assert plan.budget.values == (100.0, 200.0)
    assert [rule.statistic for rule in plan.rule] == [Statistic.RATIO]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("schema = 1", "schema = 2", "schema 2: this version reads 1"),
        ("seed = 7", "seed = 7\nsed = 8", "sed"),
        ("seed = 7", 'seed = "7"', "seed"),
        ("seed = 7\n", "", "seed"),
        ("repetitions = 3", "repetitions = 0", "repetitions: at least 1"),
        ("repetitions = 3", "repetitions = 1", "upper 95 needs two repetitions"),
        ("repetitions = 3", "repetitions = true", "repetitions"),
        ('venue = "simulator"', 'venue = "elsewhere"', "'elsewhere' is none of live, simulator"),
        ('"round-robin", "default"]', '"round-robin", "knitting"]', "no arm 'knitting'"),
        ('"round-robin", "default"]', '"default"]', "baseline 'round-robin' is none of the arms"),
        ('"round-robin", "default"]', '"round-robin", "default", "default"]', "arms: default stands twice"),
        ('"reuse", ', '"luck", ', "no metric is named 'luck'"),
        ('name = "agent-sessions"', 'name = "agents"', "workload 'agents': neither a trace"),
        ("rates = [1.0]", "rates = [2.0, 1.0]", "rates are more than 0 and rise"),
        ("blocks = [100, 200]", "blocks = [100]\nshares = [0.5]", "either shares or blocks"),
        ("blocks = [100, 200]", "blocks = [200, 100]", "at most 4,294,967,296, and rise"),
        ("at_most = 0.8", "at_most = 0.8\nat_least = 0.5", "either at_most or at_least"),
        ('against = "round-robin"\n', "", "a ratio or difference is against another arm"),
        ('against = "round-robin"', 'against = "session"', "'session' is none of the arms"),
        ("at_most = 0.8", "at_most = 0.8\nbudgets = [300]", "budgets has 300.0, which the plan does not"),
        ('statistic = "ratio"', 'statistic = "median"', "'median' is none of value, ratio, difference"),
        ("at_most = 0.8", "at_most = nan", "at_most and at_least are finite"),
        ("at_most = 0.8", "at_most = 0.8\nbudgets = []", "budgets is empty"),
        ('against = "round-robin"', 'against = "default"', "default is against itself"),
        ('"reuse", ', '"goodput", ', "goodput needs system.e2e_max_s"),
        ("blocks = [100, 200]", "shares = [1e30]", "at most 1,000, and rise"),
        ("blocks = [100, 200]", "shares = [nan]", "more than 0"),
        ("repetitions = 3", "repetitions = 100000", "trials: at most 10,000"),
        ('arms = ["round-robin", "default"]', "arms = []", "arms: at least one"),
        ("replicas = 2", "replicas = 2\nblock_size = 17", "block_size is 17"),
        ("[budget]", "[budget", "no TOML"),
    ],
)
def test_a_plan_with_a_fault_is_refused_with_one_line(old: str, new: str, said: str) -> None:
    assert old in PLAN
    with pytest.raises(PlanError) as raised:
        parse_plan(PLAN.replace(old, new, 1).encode(), "plan.toml")
    told = str(raised.value)
    assert told.startswith("plan.toml: ")
    assert said in told
    assert "\n" not in told


@pytest.mark.parametrize(
    ("crossover", "said"),
    [
        ('arms = ["default"]\nagainst = "default"', "not the one that they are against"),
        ('arms = ["default"]\nagainst = "round-robin"', "one budget"),
    ],
)
def test_a_crossover_is_between_two_arms_on_one_budget(crossover: str, said: str) -> None:
    text = f'{PLAN}\n[crossover]\n{crossover}\nmetric = "ttft_mean_s"\n'
    with pytest.raises(PlanError, match=said):
        parse_plan(text.encode(), "plan.toml")


def test_a_crossover_needs_a_metric_that_says_who_is_better() -> None:
    text = PLAN.replace("[100, 200]", "[100]") + (
        '\n[crossover]\narms = ["default"]\nagainst = "round-robin"\nmetric = "prompt_tokens"\n'
    )
    with pytest.raises(PlanError, match="neither more nor less of it is better"):
        parse_plan(text.encode(), "plan.toml")
