"""Whether senders of mailboxes know that their last message was taken before they send the next one."""

from collections import defaultdict, deque


def reused_too_early(programs):
    """The mailboxes whose sender would have to wait in ``post``. ``programs`` are what the threads do in order, each a
    list of ("post", mailbox) and ("take", mailbox). Posting number k + 1 must follow from having taken something that
    was posted, through any number of threads, after number k had been taken. ValueError if they wait for each other.

    Lamport's happens-before relation by vector clocks: ``known[i][j]`` is how many of thread j's actions thread i has
    heard of, and a message carries what its sender knows.
    """
    known = [[0] * len(programs) for _ in programs]
    sent, taken, done, early = defaultdict(deque), {}, [0] * len(programs), set()
    while any(at < len(program) for at, program in zip(done, programs, strict=True)):
        before = list(done)
        for thread, program in enumerate(programs):
            while done[thread] < len(program):
                act, box = program[done[thread]]
                if act == "take" and not sent[box]:
                    break
                mine, done[thread] = known[thread], done[thread] + 1
                mine[thread] = done[thread]
                if act == "take":
                    mine[:] = map(max, mine, sent[box].popleft())
                    taken[box] = thread, done[thread]
                else:
                    reader, when = taken.get(box, (thread, 0))
                    if sent[box] or mine[reader] < when:
                        early.add(box)
                    sent[box].append(list(mine))
        if done == before:
            stuck = [program[at] for at, program in zip(done, programs, strict=True) if at < len(program)]
            raise ValueError(f"they wait for each other: {stuck}")
    return early
