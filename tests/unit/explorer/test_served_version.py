import asyncio

from workers.explorer.weights import ServedVersion


async def test_a_wait_ends_with_the_first_version_that_is_new_enough() -> None:
    async with asyncio.timeout(5):
        served = ServedVersion()
        waiting = [asyncio.create_task(served.wait_for(version)) for version in (-1, 1, 2)]
        await asyncio.sleep(0)
        assert [task.done() for task in waiting] == [True, False, False]
        served.set(1)
        await waiting[1]
        assert not waiting[2].done()
        served.set(0)
        served.set(3)
        await waiting[2]
        assert served.version == 3
