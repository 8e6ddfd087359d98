"""The foundation of all packages. Here: errors, settings, topology, protocols. Below: ``mpi``, the only package that
imports mpi4py; ``host``, facts about the host of a process; ``files``, the files of a run; ``compiled``, helpers for
compiled code.
"""
