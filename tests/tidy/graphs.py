"""Circles in what uses what."""

import collections


def circles(edges):
    """One circle, [a, b, ..., a], for each group of nodes that use each other;
    `edges` are node -> the nodes that it uses."""
    told = set()
    for node in sorted(edges):
        circle = [] if node in told else _shortest_circle(edges, node)
        if circle:
            told.update(circle)
            yield circle


def _shortest_circle(edges, start):
    """[start, ..., start], or nothing."""
    ways = collections.deque([[start]])
    seen = set()
    while ways:
        way = ways.popleft()
        for target in sorted(edges.get(way[-1], ())):
            if target == start:
                return way + [start]
            if target not in seen:
                seen.add(target)
                ways.append(way + [target])
    return []
