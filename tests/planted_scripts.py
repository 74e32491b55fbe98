"""Scripts with faults that were planted, by what they are, in lines that are marked with IDs."""

from __future__ import annotations

from doctor_helpers import script_with

__all__ = ["ALWAYS", "DDP", "SCRIPTS", "TEN", "ddp_model"]

ALWAYS = {"D01", "D02", "D04", "D05", "D16", "D17", "D18", "D23", "D54"}
"""Applies to any model of convolutions: to be tried, or thought of, and no fault."""

SCRIPTS = {
    "nothing": {},
    "anomaly detection": {"start": "torch.autograd.set_detect_anomaly(True)  # D09"},
    "anomaly detection, a context": {
        "step": """
            optimizer.zero_grad()
            with torch.autograd.detect_anomaly():  # D09
                loss = F.cross_entropy(model(x), y)
                loss.backward()
            optimizer.step()
        """
    },
    "a profiler": {
        "step": """
            optimizer.zero_grad()
            with torch.profiler.profile():  # D30
                loss = F.cross_entropy(model(x), y)
                loss.backward()
            optimizer.step()
        """
    },
    "gradients of zeros": {
        "step": """
            optimizer.zero_grad(set_to_none=False)  # D07
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        """
    },
    "gradients of zeros, of the model": {
        "step": """
            model.zero_grad(False)  # D07
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        """
    },
    "an optimiser that is not fused": {
        "optimizer": "optimizer = torch.optim.AdamW(model.parameters(), 0.001)  # D06"
    },
    "Adam with decay": {
        "optimizer": """
            optimizer = torch.optim.Adam(model.parameters(), weight_decay=0.1, fused=True)  # D33
        """
    },
    "clipping one by one": {
        "step": """
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)  # D13
            optimizer.step()
        """
    },
    "a bias before a normalisation": {
        "model": """
            model = nn.Sequential(
                nn.Conv2d(3, 8, 3),  # D08
                nn.BatchNorm2d(8),
                nn.ReLU(inplace=True),
                nn.Flatten(),
                nn.Linear(8 * 36, 8),
            ).to(memory_format=torch.channels_last)
        """
    },
    "an activation that copies": {
        "model": """
            model = nn.Sequential(
                nn.Conv2d(3, 8, 3, bias=False),
                nn.BatchNorm2d(8),
                nn.ReLU(),  # D15
                nn.Flatten(),
                nn.Linear(8 * 36, 8),
            ).to(memory_format=torch.channels_last)
        """
    },
    "an activation whose input is wanted": {
        "model": """
            model = nn.Sequential(
                nn.Conv2d(3, 8, 3, bias=False),
                nn.Sigmoid(),
                nn.ReLU(),
                nn.Flatten(),
                nn.Linear(8 * 36, 8),
            ).to(memory_format=torch.channels_last)
        """
    },
    "channels first": {
        "step": """
            x = x.contiguous()
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        """,
        "model": """
            model = nn.Sequential(  # D03
                nn.Conv2d(3, 8, 3, bias=False),
                nn.Flatten(),
                nn.Linear(8 * 36, 8),
            )
        """,
    },
    "validation that records": {
        "validation": """
            model.eval()
            for x, y in loader:
                model(x.contiguous(memory_format=torch.channels_last))  # D10
        """
    },
    "training in evaluation mode": {
        "before": "pass",
        "step": """
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)  # D47
            loss.backward()
            optimizer.step()
        """,
    },
    "a value in each step": {
        "step": """
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            total = loss.item()  # D11
        """
    },
    "values that are read after the step": {
        "step": """
            optimizer.zero_grad()
            output = model(x)
            loss = F.cross_entropy(output, y)
            predicted, shown = output.detach().argmax(1), loss.detach()
            loss.backward()
            optimizer.step()
            right = (predicted == y).sum().item()  # D11
            print(shown)  # D11
            kept = predicted.cpu()  # D11
            text = f"{shown:.3f}"  # D11
        """
    },
    "values that stay on the host": {
        "step": """
            places = [int(place) for place in torch.randperm(4)]
            total = (torch.rand(3) > 0.5).sum().item()
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        """
    },
    "a value of what was moved": {
        "step": """
            y = y.to("cpu")
            total = (y == 3).sum().item()  # D11
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        """
    },
    "a value of what the model makes": {
        "step": """
            optimizer.zero_grad()
            output = model(x)
            F.cross_entropy(output, y).backward()
            optimizer.step()
            right = (output.detach().argmax(1) == y).float().mean().item()  # D11
        """
    },
    "a tensor that is made on the host and moved": {
        "step": """
            noise = torch.rand(4, 64, 64, 4).to(torch.device("cpu"))  # D12
            small = torch.rand(4).mul(2).to("cpu")  # D12
            other = torch.rand(4, 64, 64, 4).to(torch.float64)
            padded = torch.zeros(4)
            padded[2] = 1.0
            padded = padded.to("cpu")
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        """
    },
    "an index that is made on the host": {
        "step": """
            order = torch.randperm(len(x))  # D12
            others = torch.randperm(len(y))
            optimizer.zero_grad()
            output = model(x)
            mixed = 0.5 * output + 0.5 * output[order]
            chosen = y[others]
            F.cross_entropy(mixed, y).backward()
            optimizer.step()
        """
    },
    "tensors of arrays and lists": {
        "start": """
            import numpy as np
            array, device = np.ones(8), torch.device("cpu")
            constant = torch.tensor(5.0).to("cpu")
        """,
        "step": """
            copied = torch.tensor(array)  # D12
            shared, converted = torch.as_tensor(array), torch.tensor(array, dtype=torch.float32)
            number, known = torch.tensor(5.0), torch.tensor([1.0, 2.0], device="cpu")
            moved = torch.tensor([1.0, 2.0]).to("cpu")  # D12
            made = torch.tensor([1.0, 2.0], device=device)  # D12
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        """,
    },
    "gradients that are added up": {
        "before": "model.train(); count = 0",
        "step": """
            loss = F.cross_entropy(model(x), y)
            if count % 2 == 0:
                optimizer.zero_grad()
            loss.backward()
            count += 1
            if count % 2 == 0:
                optimizer.step()
        """,
    },
    "a copy that blocks": {
        "optimizer": """
            loader = DataLoader(data, 4, pin_memory=True)
            optimizer = torch.optim.SGD(model.parameters(), 0.1, fused=True)
        """,
        "step": """
            y = y.to("cpu")  # D21
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        """,
    },
    "batches that are not pinned": {
        "optimizer": """
            loader = DataLoader(data, 4)  # D22
            optimizer = torch.optim.SGD(model.parameters(), 0.1, fused=True)
        """,
        "step": """
            y = y.to("cpu", non_blocking=True)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        """,
    },
    "pinned batches, and copies that do not block": {
        "optimizer": """
            loader = DataLoader(data, 4, pin_memory=True)
            optimizer = torch.optim.SGD(model.parameters(), 0.1, fused=True)
        """,
        "step": """
            y = y.to("cpu", non_blocking=True)
            weights = torch.ones(8).to("cpu")  # D12
            optimizer.zero_grad()
            F.cross_entropy(model(x), y, weights).backward()
            optimizer.step()
        """,
    },
    "batches that are pinned where there is a GPU": {
        "optimizer": """
            options = {"pin_memory": True} if torch.cuda.is_available() else {}
            loader = DataLoader(data, 4, **options)
            optimizer = torch.optim.SGD(model.parameters(), 0.1, fused=True)
        """,
        "step": """
            y = y.to("cpu", non_blocking=True)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        """,
    },
    "a metric in each step, a function": {
        "start": """
            @torch.no_grad()
            def accuracy(output, target):
                many = output.repeat(200, 1)
                for _ in range(300):  # most of a step
                    order = many.argsort(1)
                return (order[: len(target), -1] == target).float().sum()
        """,
        "step": """
            optimizer.zero_grad()
            output = model(x)
            loss = F.cross_entropy(output, y)
            right = accuracy(output, y)  # D14
            loss.backward()
            optimizer.step()
        """,
    },
    "a metric after the step": {
        "start": """
            @torch.no_grad()
            def accuracy(output, target):
                many = output.repeat(2000)
                for _ in range(300):  # most of a step
                    order = many.argsort()
                return (output == target).float().sum()
        """,
        "step": """
            optimizer.zero_grad()
            output = model(x)
            loss = F.cross_entropy(output, y)
            predicted = output.detach().argmax(1)
            loss.backward()
            optimizer.step()
            right = accuracy(predicted, y)  # D14
        """,
    },
    "a metric every ten steps": {
        "start": """
            def accuracy(output, target):
                return (output.argmax(1) == target).float().mean()
            count = 0
        """,
        "step": """
            optimizer.zero_grad()
            output = model(x)
            F.cross_entropy(output, y).backward()
            optimizer.step()
            if count % 10 == 0:
                right = accuracy(output, y)
            count += 1
        """,
    },
    "what the loss needs": {
        "start": """
            centre = torch.zeros(8)
            def hardest(output, target):
                return (output.detach().argmax(1) != target).float()
            def move(output):
                centre.mul_(0.9).add_(output.detach().mean(0), alpha=0.1)
            def matched(output):
                return torch.as_tensor(output.detach().argmax(1).numpy())  # D11
        """,
        "step": """
            optimizer.zero_grad()
            output = model(x)
            weights = hardest(output, y) + 1
            pairs = matched(output)
            loss = (F.cross_entropy(output - centre, y, reduction="none") * weights).mean()
            loss = loss + F.cross_entropy(output, pairs)
            loss.backward()
            optimizer.step()
            move(output)
        """,
    },
    "averaged weights": {
        "optimizer": """
            optimizer = torch.optim.SGD(model.parameters(), 0.1, fused=True)
            averaged = torch.optim.swa_utils.AveragedModel(model)
            def update():
                with torch.no_grad():
                    for p, q in zip(averaged.parameters(), model.parameters()):
                        p.lerp_(q, 0.1)
            losses = []
            def keep(loss, output):
                losses.append((loss.detach() * 2, output.detach().cpu()))  # D11
        """,
        "step": """
            optimizer.zero_grad()
            output = model(x)
            loss = F.cross_entropy(output, y)
            loss.backward()
            optimizer.step()
            averaged.update_parameters(model)
            update()
            keep(loss, output)
        """,
    },
    "blocks that are repeated": {
        "model": """
            class Block(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.layer = nn.Linear(192, 192)
                def forward(self, x):
                    return x + self.layer(x)
            blocks = [Block() for _ in range(4)]
            model = nn.Sequential(nn.Flatten(), *blocks, nn.Linear(192, 8))  # D35
        """
    },
    "blocks that are checkpointed": {
        "model": """
            from torch.utils.checkpoint import checkpoint
            class Block(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.layer = nn.Linear(192, 192)
                def forward(self, x):
                    return x + checkpoint(self.layer, x, use_reentrant=False)
            blocks = [Block() for _ in range(4)]
            model = nn.Sequential(nn.Flatten(), *blocks, nn.Linear(192, 8))
        """
    },
    "a value in a condition": {
        "step": """
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            if torch.isnan(loss):  # D11
                break
            loss.backward()
            optimizer.step()
        """
    },
    "clipping of scaled gradients": {
        "start": "scaler = torch.amp.GradScaler('cpu')",
        "step": """
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # D41
            scaler.step(optimizer)
            scaler.update()
        """,
        "validation": "pass",
    },
    "a step that calls a closure": {
        "step": """
            def closure():
                optimizer.zero_grad(set_to_none=False)  # D07
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                return loss
            optimizer.step(closure)
        """
    },
    "clipping before the backward pass": {
        "step": """
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # D42
            loss.backward()
            optimizer.step()
        """
    },
    "gradients that are never cleared": {
        "step": """
            F.cross_entropy(model(x), y).backward()
            optimizer.step()  # D45
        """
    },
    "scaled without autocast": {
        "start": "scaler = torch.amp.GradScaler('cpu')",
        "step": """
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)  # D48
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        """,
    },
    "validation without autocast": {
        "step": """
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        """,
        "validation": """
            model.eval()
            with torch.no_grad():
                for x, y in loader:
                    model(x.contiguous(memory_format=torch.channels_last))  # D49
        """,
    },
    "a compiled model": {
        "before": "model.train(); model.compile(backend='aot_eager') if epoch == 0 else None",
        "step": """
            optimizer.zero_grad(set_to_none=False)  # D07
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        """,
    },
    "DataParallel": {
        "model": """
            model = nn.Sequential(
                nn.Conv2d(3, 8, 3, bias=False),
                nn.Flatten(),
                nn.Linear(8 * 36, 8),
            ).to(memory_format=torch.channels_last)
            model = nn.DataParallel(model)  # D25
        """
    },
    "deterministic algorithms": {"start": "torch.use_deterministic_algorithms(True)  # D34"},
}

DDP = """
    import os
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
"""


def ddp_model(options: str) -> str:
    return f"""
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3, bias=False), nn.Flatten(), nn.Linear(8 * 36, 8),
        ).to(memory_format=torch.channels_last)
        model = nn.parallel.DistributedDataParallel(model, {options}
    """


ACCUMULATED = """
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()  # D28
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
"""

SCRIPTS |= {
    "DDP that looks for parameters": {
        "start": DDP,
        "model": ddp_model("gradient_as_bucket_view=True, find_unused_parameters=True)  # D26"),
    },
    "DDP that copies gradients": {"start": DDP, "model": ddp_model("bucket_cap_mb=1)  # D27")},
    "accumulation that reduces each time": {
        "start": DDP,
        "model": ddp_model("gradient_as_bucket_view=True)"),
        "step": ACCUMULATED,
    },
    "accumulation with no_sync": {
        "start": DDP,
        "model": ddp_model("gradient_as_bucket_view=True)"),
        "step": """
            optimizer.zero_grad()
            with model.no_sync():
                F.cross_entropy(model(x), y).backward()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        """,
    },
    "normalisations of few samples a rank": {
        "start": DDP,
        "model": """
            model = nn.Sequential(
                nn.Conv2d(3, 8, 3, bias=False),
                nn.BatchNorm2d(8),  # D29
                nn.Flatten(),
                nn.Linear(8 * 36, 8),
            ).to(memory_format=torch.channels_last)
            model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        """,
    },
}


TEN = script_with(
    start="torch.autograd.set_detect_anomaly(True)  # D09",
    model="""
        model = nn.Sequential(  # D03
            nn.Conv2d(3, 8, 3),  # D08
            nn.BatchNorm2d(8),
            nn.ReLU(),  # D15
            nn.Flatten(),
            nn.Linear(8 * 36, 11),
        )
    """,
    optimizer="optimizer = torch.optim.Adam(model.parameters(), weight_decay=0.1)  # D06 D33",
    step="""
        x = x.contiguous()
        optimizer.zero_grad(set_to_none=False)  # D07
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)  # D13
        optimizer.step()
        print(loss.item())  # D11
    """,
    validation="""
        model.eval()
        for x, y in loader:
            model(x)  # D10
    """,
)
