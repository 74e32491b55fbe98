"""Worker processes: how they start, what they send and receive, and how they end.

Loading, packing and tuning use the same pool; each brings a `Role`, which says how its processes
set themselves up and what a death of one means.

    ProcessPool.submit --one socket of tasks--> whichever worker is idle: run_worker
    Ticket.result <----one socket of results--'

      starting.py    Role and Death; processes under every start method
      groups.py      processes that end with all that they have started
      worker.py      what runs in a worker process
      pool.py        ProcessPool and its tickets; notices every death
      sharing.py     packets, a task's result as a packet, and memory that several processes map
      protection.py  a user's script changes no file, and ends with all that it has started
      calls.py       its system calls that would change files, which succeed without an effect
      resources.py   how many cores and how much memory this process may use
"""
