"""What a probe measured, as tables and a plot of bars."""

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trimaran.probe.measured import Measured, Product
    from trimaran.spec import Cluster

BAR = 40  # characters of the fastest product


def print_measured(measured: "Measured", cluster: "Cluster") -> None:
    from trimaran.cli.show import console, print_table

    out, where = console(), f"{measured.nodes} nodes" if measured.nodes > 1 else "one node"
    out.print(
        f"[bold]{measured.device_name}[/], ranks at once: {measured.ranks}, on {where}, {measured.precision},"
        f" in {measured.took_seconds:.0f} s",
        highlight=False,
    )
    print_table("Device, as one rank has it", ("", "measured", "meaning"), _device_rows(measured, cluster), left=(0, 2))
    print_table(f"Matrix products of {measured.model}", *_products(measured, cluster))
    print_table("More and more columns: tiles and waves", *_sweep(measured))
    if measured.collectives:
        print_table("Messages", *_collectives(measured), left=(0, 1))
    if measured.left_out:
        out.print(f"Left out: {measured.left_out} of the measurements, too long or too late for the time of a probe.")


def _device_rows(measured: "Measured", cluster: "Cluster") -> list[tuple[str, str, str]]:
    device, traffic, launches, k = cluster.device, measured.traffic, measured.launches, cluster.probed
    rows = [
        (
            f"{name} product",
            f"{tflops:.4g} TFLOP/s",
            _share(tflops / device.peak_tflops[name]),
        )
        for name, tflops in device.matmul_tflops.items()
    ]
    if measured.sustained_tflops is not None:
        rows += [("without a pause", f"{measured.sustained_tflops:.4g} TFLOP/s", "large products for five seconds")]
    rows += [
        ("memory copy", f"{traffic.copy_gb_per_s:.4g} GB/s", "read and written bytes of y = x"),
        ("memory triad", f"{traffic.triad_gb_per_s:.4g} GB/s", "of z = x + s y"),
        ("elementwise work", f"{k['memory_efficiency']:.0%}", "of the memory's bandwidth, as the cost model counts it"),
        ("attention", f"{k['flash_efficiency']:.0%}", "of the peak, forward and backward"),
        ("a kernel", f"{launches.kernel_seconds * 1e6:.3g} us", "a matrix product too small to matter"),
        ("a layer", f"{launches.layer_seconds * 1e6:.3g} us", "the forward pass of a layer too small to matter"),
        ("context", f"{cluster.context_gib:.3g} GiB", "of a device that no tensor gets"),
    ]
    return rows


def _share(of_peak: float) -> str:
    return (
        "the best, which stands for the peak" if of_peak == 1 else f"the best; {of_peak:.0%} of the peak by data sheet"
    )


def _products(measured: "Measured", cluster: "Cluster") -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """Beside each the cost model with the new constants: how well a few numbers describe this machine."""
    from trimaran.cost.constants import constants_of
    from trimaran.cost.gemm import gemm_seconds

    k, peak = constants_of(cluster), cluster.device.peak_tflops[measured.precision] * 1e12
    rows = []
    for product in measured.products:
        if product.what not in ("sweep", "square"):
            sides = (product.rows, product.columns, product.inner)
            modelled = float(gemm_seconds(cluster.device, peak, k, *sides))
            times = (f"{product.seconds * 1e3:.3f}", f"{modelled * 1e3:.3f}", f"{modelled / product.seconds - 1:+.0%}")
            rows.append((product.what, *map(str, sides), *times, f"{product.tflops:.4g}"))
    return ("product", "rows", "columns", "inner", "ms", "cost model", "off", "TFLOP/s"), rows


def _sweep(measured: "Measured") -> tuple[Sequence[str], list[tuple[str, ...]], Sequence[int]]:
    products: list[Product] = sorted((p for p in measured.products if p.what == "sweep"), key=lambda p: p.columns)
    fastest = max(product.tflops for product in products)
    rows: list[tuple[str, ...]] = [
        (str(p.columns), f"{p.tflops:.4g}", "█" * round(BAR * p.tflops / fastest)) for p in products
    ]
    return ("columns", "TFLOP/s", f"of {products[0].rows} rows, inner side {products[0].inner}"), rows, (2,)


def _collectives(measured: "Measured") -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """A row for each group, its smallest and its largest message, and the line through all of them."""
    from trimaran.probe.line import line_through

    rows: list[tuple[str, ...]] = []
    order = sorted(measured.collectives, key=lambda c: (c.where, c.kind, c.ranks, c.bytes))
    for (where, kind, ranks), found in groupby(order, key=lambda c: (c.where, c.kind, c.ranks)):
        group = list(found)
        line = line_through([1] * len(group), [c.bytes for c in group], [c.seconds for c in group])
        small, best = group[0], max(group, key=lambda c: c.bus_gb_per_s)
        rows.append(
            (
                kind,
                where,
                f"{ranks} x {small.at_once}",
                f"{small.seconds * 1e6:.4g}",
                f"{best.bytes / 2**20:.3g}",
                f"{best.algorithm_gb_per_s:.4g}",
                f"{best.bus_gb_per_s:.4g}",
                f"{line.latency_seconds * 1e6:.4g} us + bytes / {line.bytes_per_s / 1e9:.4g} GB/s",
            )
        )
    header = ("message", "where", "ranks x groups", "1 KiB, us", "best at MiB", "algorithm GB/s", "bus GB/s", "line")
    return header, rows
