"""Train embedding bags whose rows are divided over ranks: python examples/embedding_bag.py, or under mpirun."""

import torch
from mpi4py import MPI

import mgg_hpc as mgg

mgg.manual_seed(0)
tables = [mgg.nn.TableConfig(f"t{n}", 10_000, 16, [f"f{n}"]) for n in range(4)]
bags = mgg.nn.ShardedEmbeddingBagCollection(tables, optimizer=mgg.nn.RowWiseAdagrad(0.1))
lengths = torch.full((64,), 3)
for _ in range(20):
    batch = {f"f{n}": (torch.randint(0, 10_000, (64 * 3,)), lengths) for n in range(4)}
    out = bags(batch)  # {"f0": [64, 16], ...}, of this rank's 64 bags
    loss = sum((each.sum(1) - 1).square().mean() for each in out.values())
    loss.backward()  # changes the rows on their owners
if MPI.COMM_WORLD.rank == 0:
    print(f"loss {loss.item():.3f}")
bags.close()
