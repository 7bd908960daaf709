import time, torch, pytest
from cachetier_client import Client
from cachetier_client.torch import CachetierWriter
from cachetier_client.torch.lazy import LazyStager
from tests.frameworks.test_lazy_saves import *
def test_tiny(client):
    tr = Trained((3,MEBI),(2,MEBI))
    extra = torch.randn(6,MEBI)
    with LazyStager(tr.optimizer, ring_bytes=4*MEBI) as st:
        w = CachetierWriter(client=client, stager=st)
        was=[]; fs=[]
        for i in range(4):
            s={**tr.state(),"extra":extra+i}
            was.append(all_bits(s)); fs.append(async_save(s,i,w)); tr.optimizer.step()
        sv=[]
        for i in range(3):
            was.append(bits(tr.parameters[0])); sv.append(st.save(client,"a",{"x":tr.parameters[0]},run="run",step=50+i,rank=0)); tr.optimizer.step()
        for f in fs: f.result(60)
        for f in sv: f.result(60)
        print(st.waits, st.waited_seconds)
    for i in range(4): assert loaded(client,i,{**tr.state(),"extra":extra})==was[i]
    for i in range(3): assert items_of(client.get_shard("run",50+i,"a"))["x"][1]==was[4+i]
