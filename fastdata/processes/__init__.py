"""Worker processes: how they start, what they send and receive, and how they end.

Loading, packing and tuning use the same pool; each brings a `Role`, which says how its processes
set themselves up and what a death of one means.

    ProcessPool.submit --one socket of tasks--> whichever worker is idle: run_worker
    Ticket.result <----one socket of results--'

      starting.py   Role and Death; processes under every start method; signals held back meanwhile
      worker.py     what runs in a worker process, which also ends when its parent does
      pool.py       ProcessPool and its tickets; notices every death
      outcomes.py   results, and errors as themselves, as packets
      sharing.py    packets, and memory that several processes map
      groups.py     a process that is ended with everything that it has started
      cores.py      how many cores this process may use
"""
