"""What all packages stand on. Here: errors, settings, topology, protocols. Below: ``mpi``, the only package that
imports mpi4py; ``host``, what a process learns about its host; ``files``, those of a run; ``compiled``, helpers of
compiled code.
"""
