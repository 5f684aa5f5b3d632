"""Modules that run in the workers' processes.

A module of another library (peer_NAME.py) imports nothing of mgg_hpc, which its environment may not have.
"""
