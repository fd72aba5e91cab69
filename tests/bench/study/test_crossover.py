from lmpool.bench.study.crossover import Search, Win, crossed, is_needless, win
from lmpool.bench.study.matrix import Point, matrix, rungs
from lmpool.bench.study.plan import Plan
from lmpool.bench.study.plan_text import parse_plan
from lmpool.bench.study.statistic import Cell
from tests.bench.study.made import PLAN

TEXT = PLAN.replace("[100, 200]", "[100]").replace("rates = [1.0]", "rates = [1.0, 2.0, 4.0]").split("[[rule]]")[0]


def _plan(metric: str = "ttft_mean_s") -> Plan:
    crossover = f'[crossover]\narms = ["default"]\nagainst = "round-robin"\nmetric = "{metric}"\n'
    return parse_plan((TEXT + crossover).encode(), "plan")


def _cell(rate: float, ratios: list[float], metric: str = "ttft_mean_s") -> Cell:
    numbers = range(1, len(ratios) + 1)
    return Cell(
        Point("agent-sessions", 100.0, rate),
        {
            "round-robin": {number: {metric: 1.0} for number in numbers},
            "default": dict(zip(numbers, [{metric: ratio} for ratio in ratios], strict=True)),
        },
    )


WINS, TIES, LOSES = [0.5, 0.5, 0.51], [0.7, 1.2, 0.9], [1.5, 1.5, 1.5]


def _search(*ratios: list[float]) -> tuple[Search, float | None, float | None]:
    plan = _plan()
    assert plan.crossover is not None
    cells = [_cell(rate, found) for rate, found in zip((1.0, 2.0, 4.0), ratios, strict=False)]
    (one,) = crossed(plan, plan.crossover, cells)
    return one.search, one.last_won, one.first_lost


def test_an_arm_stops_winning_where_its_interval_reaches_one() -> None:
    assert _search(WINS, TIES, []) == (Search.FOUND, 1.0, 2.0)
    assert _search(WINS, WINS, LOSES) == (Search.FOUND, 2.0, 4.0)


def test_an_arm_wins_or_loses_with_its_whole_interval() -> None:
    for metric, better in (("ttft_mean_s", (Win.WINS, Win.LOSES)), ("throughput", (Win.LOSES, Win.WINS))):
        plan = _plan(metric)
        assert plan.crossover is not None
        found = [win(plan, plan.crossover, "default", _cell(1.0, one, metric))[0] for one in (WINS, TIES, LOSES, [0.5])]
        assert found == [better[0], Win.EVEN, better[1], Win.UNKNOWN]


def test_a_search_may_not_be_reached_or_never_begin() -> None:
    assert _search(WINS, WINS, WINS) == (Search.NOT_REACHED, 4.0, None)
    assert _search(LOSES, [], []) == (Search.NEVER_WON, None, 1.0)
    assert _search(WINS, [0.5]) == (Search.OPEN, 1.0, None)


def test_where_more_is_better_a_ratio_above_one_wins() -> None:
    plan = _plan("throughput")
    assert plan.crossover is not None
    cells = [_cell(1.0, [2.0, 2.0, 2.1], "throughput"), _cell(2.0, WINS, "throughput")]
    (one,) = crossed(plan, plan.crossover, cells)
    assert (one.search, one.last_won, one.first_lost) == (Search.FOUND, 1.0, 2.0)


def test_loads_above_the_one_that_ended_a_search_are_needless() -> None:
    plan = _plan()
    cells = [_cell(1.0, WINS), _cell(2.0, TIES), _cell(4.0, [])]
    assert [is_needless(plan, cell.point, cells) for cell in cells] == [False, False, True]


def test_a_search_goes_on_while_any_arm_wins() -> None:
    text = TEXT.replace('"round-robin", "default"]', '"round-robin", "session", "default"]')
    asked = '[crossover]\narms = ["session", "default"]\nagainst = "round-robin"\nmetric = "ttft_mean_s"\n'
    plan = parse_plan((text + asked).encode(), "plan")
    assert plan.crossover is not None

    def cell(rate: float, session: list[float], default: list[float]) -> Cell:
        values = {"session": {number: {"ttft_mean_s": one} for number, one in enumerate(session, start=1)}}
        made = _cell(rate, default)
        return Cell(made.point, {**made.values, **values})

    cells = [cell(1.0, WINS, WINS), cell(2.0, LOSES, WINS), cell(4.0, LOSES, WINS)]
    assert [is_needless(plan, one.point, cells) for one in cells] == [False, False, False]
    session, default = crossed(plan, plan.crossover, cells)
    assert (session.arm, session.search, session.first_lost) == ("session", Search.FOUND, 2.0)
    assert (default.arm, default.search) == ("default", Search.NOT_REACHED)
    assert is_needless(plan, cells[2].point, [cells[0], cell(2.0, LOSES, TIES)])


def test_loads_run_one_by_one_from_the_lowest() -> None:
    found = [{trial.point.rate for trial in rung} for rung in rungs(_plan())]
    assert found == [{1.0}, {2.0}, {4.0}]
    assert len(matrix(_plan())) == 3 * 2 * 3
