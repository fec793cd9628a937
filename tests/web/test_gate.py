"""A bounded amount of work at a time, whatever comes."""

import asyncio
import threading

import pytest
from starlette.requests import Request

from deepfishing.web.guard import Gate, Receiver, RefusedError, read_body


def test_so_many_run_so_many_wait_and_the_rest_is_told_to_come_back():
    running, most, lock, release = 0, 0, threading.Lock(), threading.Event()

    def work():
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        release.wait(300)
        with lock:
            running -= 1
        return "done"

    async def ask_ten():
        gate = Gate(running=2, waiting=3)
        asked = [asyncio.create_task(gate.run(work)) for _ in range(10)]
        while sum(task.done() for task in asked) < 5 or running < 2:
            await asyncio.sleep(0.001)
        release.set()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        return answers, await gate.run(lambda: "again")

    answers, again = asyncio.run(ask_ten())
    assert most == 2
    assert [a for a in answers if a == "done"] == ["done"] * 5
    refused = [a for a in answers if isinstance(a, RefusedError)]
    assert [(a.status, a.headers) for a in refused] == [(503, {"Retry-After": "1"})] * 5
    assert again == "again"


def test_work_that_fails_gives_its_place_back():
    async def fail_thrice():
        gate = Gate(running=1, waiting=0)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                await gate.run(lambda: 1 / 0)

    asyncio.run(fail_thrice())


def request_of(*messages, headers=()):
    """A request whose body arrives as these messages; then nothing more comes."""
    waiting = list(messages)

    async def receive():
        if not waiting:
            await asyncio.sleep(60)
        return waiting.pop(0)

    return Request(
        {"type": "http", "method": "POST", "headers": list(headers)}, receive
    )


def chunk(body, more):
    return {"type": "http.request", "body": body, "more_body": more}


def test_a_body_is_what_was_sent():
    request = request_of(chunk(b"ab", True), chunk(b"", True), chunk(b"cd", False))
    assert asyncio.run(read_body(request, limit=4)) == b"abcd"


@pytest.mark.parametrize(
    ("messages", "headers", "status"),
    [
        ([chunk(b"abc", True), chunk(b"de", True)], [], 413),
        ([], [(b"content-length", b"5")], 413),
        ([], [(b"content-length", b"9" * 5000)], 413),
        ([chunk(b"abc", True)], [], 408),
        ([chunk(b"abc", True)], [(b"content-length", b"-1")], 408),
        ([chunk(b"a", True), {"type": "http.disconnect"}], [], 400),
    ],
)
def test_a_body_that_is_too_large_too_slow_or_torn_is_refused(
    messages, headers, status
):
    with pytest.raises(RefusedError) as refused:
        asyncio.run(
            read_body(request_of(*messages, headers=headers), limit=4, seconds=0.05)
        )
    assert refused.value.status == status


def test_slow_bodies_hold_no_place_of_others():
    """A hundred clients that send some bytes and stop leave a whole body to be received at once."""

    async def receive():
        receiver = Receiver(max_bytes=10)
        slow = [
            asyncio.create_task(take(receiver, chunk(b"s", True))) for _ in range(100)
        ]
        await asyncio.sleep(0)
        received = await take(receiver, chunk(b"photo", True), chunk(b".jpg", False))
        await asyncio.sleep(0.01)
        refused = [task.exception().status for task in slow if task.done()]
        for task in slow:
            task.cancel()
        return received, refused

    async def take(receiver, *messages):
        async with receiver.body(request_of(*messages), limit=9) as content:
            return content

    received, refused = asyncio.run(receive())
    assert received == b"photo.jpg"
    assert len(refused) >= 99 - 1  # one byte of room is left beside the photo
    assert set(refused) == {503}


def test_whole_bodies_in_use_count_and_are_not_taken_away():
    async def receive():
        receiver = Receiver(max_bytes=4)
        async with receiver.body(request_of(chunk(b"abcd", False)), limit=4) as content:
            with pytest.raises(RefusedError) as refused:
                async with receiver.body(request_of(chunk(b"e", False)), limit=4):
                    pass
        async with receiver.body(request_of(chunk(b"e", False)), limit=4) as again:
            return content, refused.value.status, again

    assert asyncio.run(receive()) == (b"abcd", 503, b"e")


def test_a_body_that_pauses_for_long_is_refused(monkeypatch):
    monkeypatch.setattr("deepfishing.web.guard.SILENT_SECONDS", 0.05)
    with pytest.raises(RefusedError) as refused:
        asyncio.run(read_body(request_of(chunk(b"a", True)), limit=4, seconds=30))
    assert refused.value.status == 408
