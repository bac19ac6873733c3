"""Merging methods written out in numpy and float64 from their papers, without a look at the package."""

from __future__ import annotations

import itertools

import numpy as np


def each_tensor(formula):
    """A formula of one tensor's base and experts, for every tensor."""
    return lambda base, experts: {name: formula(base[name], [e[name] for e in experts]) for name in base}


def whole_vector(formula):
    """A formula of the task vectors as rows, each a whole model."""

    def merged(base, experts):
        rows = np.stack([np.concatenate([(e[name] - base[name]).ravel() for name in base]) for e in experts])
        pieces = np.split(formula(rows), np.cumsum([base[name].size for name in base])[:-1])
        return {n: base[n] + piece.reshape(base[n].shape) for n, piece in zip(base, pieces, strict=True)}

    return merged


def is_matrix(tensor):
    return tensor.ndim == 2 and tensor.size > 0


def average(base, experts):
    return sum(experts) / len(experts)


def on_matrices(formula):
    """A formula of the task vectors of a matrix; other tensors are averaged."""
    return lambda b, xs: b + formula([x - b for x in xs]) if is_matrix(b) else average(b, xs)


def task_arithmetic(scaling):
    return lambda base, experts: base + scaling * sum(x - base for x in experts)


def expo(base, experts):
    return average(base, experts) + 0.1 * (average(base, experts) - base)


def magmax(base, experts):
    best = experts[0] - base
    for expert in experts[1:]:
        best = np.where(np.abs(expert - base) >= np.abs(best), expert - base, best)
    return base + 0.5 * best


def slerp(a, b, t, parallel):
    lengths = np.linalg.norm(a) * np.linalg.norm(b)
    cosine = np.clip((a * b).sum() / lengths, -1, 1) if lengths > 0 else 1.0
    if abs(cosine) > parallel:
        return (1 - t) * a + t * b
    angle = np.arccos(cosine)
    return (np.sin((1 - t) * angle) * a + np.sin(t * angle) * b) / np.sin(angle)


def multislerp(base, experts, eps=1e-8):
    if len(experts) == 1:
        return experts[0]
    norms = [np.linalg.norm(x) for x in experts]
    units = [x / (norm + eps) for x, norm in zip(experts, norms, strict=True)]
    mean = sum(units) / len(units)
    if np.linalg.norm(mean) < 1e-6:
        return average(base, experts)
    mean = mean / np.linalg.norm(mean)
    tangent = sum(u - (u * mean).sum() * mean for u in units) / len(units)
    angle = np.linalg.norm(tangent) + eps
    return (mean * np.cos(angle) + tangent * np.sin(angle) / angle) * np.mean(norms)


def karcher(base, experts, iterations=10, tol=1e-5):
    norms = [np.linalg.norm(x) for x in experts]
    units = [x / norm for x, norm in zip(experts, norms, strict=True) if norm > 0]
    if not units:
        return average(base, experts)
    mean = sum(units)
    mean = mean / np.linalg.norm(mean) if np.linalg.norm(mean) > tol else units[0]
    for _ in range(iterations):
        tangent = np.zeros_like(mean)
        for unit in units:
            angle = np.arccos(np.clip((mean * unit).sum(), -1, 1))
            if angle >= tol and np.sin(angle) > 1e-6:
                tangent += angle / np.sin(angle) * (unit - np.cos(angle) * mean) / len(units)
        length = np.linalg.norm(tangent)
        if length < tol:
            break
        mean = mean * np.cos(length) + tangent * np.sin(length) / length
        mean = mean / np.linalg.norm(mean)
    return mean * np.mean(norms)


def model_stock(base, experts):
    deltas, cosines = [(x - base).ravel() for x in experts], []
    for a, b in itertools.combinations(deltas, 2):
        length = np.linalg.norm(a) * np.linalg.norm(b)
        cosines.append(np.clip(a @ b / length, -1, 1) if length > 0 else 0.0)
    cosine, count = np.mean(cosines), len(experts)
    divisor = 1 + (count - 1) * cosine
    ratio = count * cosine / divisor if abs(divisor) > 1e-6 else 0.0
    return ratio * average(base, experts) + (1 - ratio) * base


def top(row, density):
    cut = np.sort(np.abs(row).ravel())[::-1][max(1, int(density * row.size)) - 1]
    return np.where(np.abs(row) >= cut, row, 0)


def ties(rows, density, combine="mean"):
    kept = np.stack([top(row, density) for row in rows])
    sign = np.where(kept.sum(0) >= 0, 1.0, -1.0)
    agrees = np.sign(kept) == sign
    if combine == "max":
        return sign * np.abs(kept * agrees).max(0)
    total = (kept * agrees).sum(0)
    return total / np.maximum(agrees.sum(0), 1) if combine == "mean" else total


def ties_in_tensors(base, experts):
    rows = np.stack([(x - base).ravel() for x in experts])
    return base + ties(rows, 0.4, "max").reshape(base.shape)


def consensus(combined, scaling):
    def merged(rows):
        tau = combined(rows)
        votes = (np.abs(rows) > 0.6 * np.abs(tau - rows)).sum(0)
        return scaling * tau * (votes >= 2)

    return merged


def trust_region(rows):
    pairs = itertools.permutations(range(len(rows)), 2)
    conflict = sum(np.abs(rows[i]) * np.abs(rows[j]) for i, j in pairs)
    return 0.3 * rows.sum(0) * (conflict < np.sort(conflict)[int(0.99 * conflict.size)])


def localize_and_stitch(rows):
    kept = np.stack([top(row, 0.05) for row in rows])
    return kept.sum(0) / np.maximum((kept != 0).sum(0), 1)


def breadcrumbs(base, experts):
    total = np.zeros_like(base)
    for delta in (x - base for x in experts):
        ordered = np.sort(np.abs(delta).ravel())[::-1]
        count = max(1, int(0.14 * delta.size))
        first = min(int(0.01 * delta.size), delta.size - count)
        inside = (np.abs(delta) <= ordered[first]) & (np.abs(delta) >= ordered[first + count - 1])
        total = total + np.where(inside, delta, 0)
    return base + 0.3 * total


def sce(base, experts):
    deltas = np.stack([x - base for x in experts])
    variance = deltas.var(0)
    count = int(np.count_nonzero(variance) * 0.1)
    if not count:
        return base
    deltas = deltas * (variance >= np.sort(variance.ravel())[::-1][count - 1])
    weights = np.array([(delta**2).sum() for delta in deltas]).reshape((-1,) + (1,) * base.ndim)
    agrees = np.sign(deltas) == np.where(deltas.sum(0) >= 0, 1.0, -1.0)
    share = (weights * agrees).sum(0)
    return base + (weights * agrees * deltas).sum(0) / np.where(share == 0, 1, share)


def ram(r):
    def merged(base, experts):
        deltas = np.stack([x - base for x in experts])
        on = np.abs(deltas) > 1e-5
        count, total = on.sum(0), np.zeros_like(base)
        for delta, mine in zip(deltas, on, strict=True):
            shared, unique = (mine & (count > 1)).sum(), (mine & (count == 1)).sum()
            gain = 1 + r * min(shared / max(unique, 1e-5), 0.2)
            total = total + np.where(mine, delta * np.where(count == 1, gain, 1 / np.maximum(count, 1)), 0)
        return base + total

    return merged


def nearswap(base, experts):
    share = np.clip(0.001 / np.maximum(np.abs(experts[0] - base), 1e-300), 0, 1)
    return share * experts[0] + (1 - share) * base


def pcb(rows):
    count, size = rows.shape
    ordered = np.sort(np.abs(rows), 1)
    low, high = ordered[:, int(size * 1e-4), None], ordered[:, int(size * (1 - 1e-4) - 1), None]
    clipped = np.clip(np.abs(rows), low, high)
    intra = np.where(high > low, (clipped - low) / np.where(high > low, high - low, 1), 0)
    score = np.exp(count * intra**2) * np.tanh(rows * rows.sum(0))
    ordered = np.sort(score, 1)
    cut, most = ordered[:, int(size * 0.9), None], ordered[:, -1, None]
    kept = np.where(most > cut, (np.clip(score, cut, most) - cut) / np.where(most > cut, most - cut, 1), 0)
    return (np.sign(rows) * clipped * kept).sum(0) / np.maximum(kept.sum(0), 1e-12)


def svd(matrix, rank=None, scale=None):
    """The first directions, without those whose singular value is rounding."""
    U, S, V = np.linalg.svd(matrix, full_matrices=False)
    least = max(matrix.shape) * 2**-52 * (S[0] if scale is None else scale)
    rank = min(len(S) if rank is None else rank, int((least < S).sum()))
    return U[:, :rank], S[:rank], V[:rank]


def polar(matrix):
    U, _, V = svd(matrix)
    return U @ V


def side_by_side(parts):
    U, S, V = zip(*parts, strict=True)
    return np.concatenate(U, 1), np.concatenate(S), np.concatenate(V, 0)


def tsv_m(deltas):
    U, S, V = side_by_side([svd(d, max(1, min(d.shape) // len(deltas))) for d in deltas])
    return polar(U) @ np.diag(S) @ polar(V) if len(S) else 0 * deltas[0]


def iso_c(deltas):
    U, S, V = svd(sum(deltas))
    return S.mean() * U @ V if len(S) else 0 * deltas[0]


def iso_cts(deltas):
    count, rank = len(deltas), min(deltas[0].shape)
    kept = rank - round((rank - int(0.8 * rank)) / count) * count
    if kept < 0:
        kept = rank % count
    common = svd(sum(deltas), kept)
    rest = [d - common[0] @ common[0].T @ d for d in deltas]
    own = [svd(r, (rank - kept) // count, np.linalg.norm(d)) for r, d in zip(rest, deltas, strict=True)]
    U, S, V = side_by_side([*own, common])
    return S.mean() * polar(U) @ polar(V) if len(S) else 0 * deltas[0]


def svc(base, experts):
    merged = task_arithmetic(0.3)(base, experts)
    if not is_matrix(base):
        return merged
    total = np.zeros_like(base)
    U, S, V = np.linalg.svd(merged - base, full_matrices=False)
    for r in range(len(S)):
        own = [U[:, r] @ (x - base) for x in experts]
        along = U[:, r] @ (merged - base)
        share = sum(max(0.1, along @ a / max(a @ a, 1e-12)) for a in own)
        total += len(experts) / share * S[r] * np.outer(U[:, r], V[r])
    return base + total


def knots_ties(base, experts):
    deltas = [x - base for x in experts]
    basis = np.linalg.svd(np.concatenate(deltas, 1), full_matrices=False)[0] if is_matrix(base) else None
    rows = deltas if basis is None else [basis.T @ d for d in deltas]
    merged = ties(np.stack([row.ravel() for row in rows]), 0.2).reshape(rows[0].shape)
    return base + (merged if basis is None else basis @ merged)


def cart(base, experts):
    mean = average(base, experts)
    if not is_matrix(base):
        return mean
    parts = [svd(x - mean, max(1, int(0.08 * min(base.shape)))) for x in experts]
    return mean + sum(U @ np.diag(S) @ V for U, S, V in parts)


def adam(start, gradient, lr, steps):
    x, first, second = start, np.zeros_like(start), np.zeros_like(start)
    for step in range(1, steps + 1):
        g = gradient(x)
        first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g * g
        x = x - lr * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
    return x


def wudi(deltas):
    live = [d for d in deltas if (d**2).sum() > 0]
    return adam(sum(deltas), lambda T: sum((2 * (T - d) @ d.T @ d / (d**2).sum() for d in live), 0 * T), 1e-5, 60)
