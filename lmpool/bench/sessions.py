"""Runs agent sessions against an engine, closed loop, and says what came of every turn."""

import asyncio

import attrs

from lmpool.bench.workloads import AgentSessions, Session
from lmpool.io.clock import monotonic_now
from lmpool.io.engine import AsyncEngine
from lmpool.io.generation import SamplingParams


@attrs.frozen
class TurnTimes:
    """Seconds; TTFT counts from when the turn was to be sent."""

    session: str
    turn: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    ttft_s: float
    e2e_s: float


@attrs.frozen
class SessionsRun:
    turns: tuple[TurnTimes, ...]
    seconds: float


async def run_sessions(engine: AsyncEngine, workload: AgentSessions) -> SessionsRun:
    """Raises whatever a turn raises: a run with errors has no figures."""
    began = monotonic_now()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_run_session(engine, session)) for session in workload.sessions]
    turns = tuple(turn for task in tasks for turn in task.result())
    return SessionsRun(turns, (monotonic_now() - began) / 1e9)


async def _run_session(engine: AsyncEngine, session: Session) -> list[TurnTimes]:
    history: tuple[int, ...] = ()
    times: list[TurnTimes] = []
    ready_ns = monotonic_now()
    for number, turn in enumerate(session.turns):
        planned_ns = ready_ns + int(turn.pause_s * 1e9)
        await asyncio.sleep(max(0.0, (planned_ns - monotonic_now()) / 1e9))
        history += turn.tokens
        sampling = SamplingParams(
            temperature=0.0, max_tokens=turn.output_tokens, min_tokens=turn.output_tokens, ignores_eos=True
        )
        answer: tuple[int, ...] = ()
        first_ns = cached = 0
        async for chunk in engine.generate(history, sampling, session=session.name):
            if chunk.tokens and not answer:
                first_ns, cached = monotonic_now(), chunk.cached_tokens
            answer += chunk.tokens
        ready_ns = monotonic_now()
        if len(answer) != turn.output_tokens:
            raise RuntimeError(f"{session.name} turn {number}: {len(answer)} tokens instead of {turn.output_tokens}")
        ttft_s, e2e_s = (first_ns - planned_ns) / 1e9, (ready_ns - planned_ns) / 1e9
        times.append(TurnTimes(session.name, number, len(history), cached, len(answer), ttft_s, e2e_s))
        history += answer
    return times
