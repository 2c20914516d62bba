#include "daemon/links/fair_order.h"

#include <algorithm>

#include "base/check.h"

namespace terrace {
namespace {

int64_t LimitsAhead(IoClass io_class) {
  if (IsAwaited(io_class)) return FairOrder::kAwaitedLimits;
  return io_class == IoClass::kPrefetch ? FairOrder::kPrefetchLimits : 0;
}

double Share(int64_t bytes, int weight) {
  return static_cast<double>(bytes) / weight;
}

}  // namespace

FairOrder::FairOrder() { nodes_[kRoot] = Node(); }

int FairOrder::Add(int parent, int weight) {
  TERRACE_CHECK(weight > 0);
  Node& above = nodes_.at(parent);
  Node node;
  node.parent = parent;
  node.weight = weight;
  node.start = above.now;
  above.children.push_back(next_);
  nodes_[next_] = std::move(node);
  return next_++;
}

void FairOrder::Remove(int node) {
  const Node& gone = nodes_.at(node);
  TERRACE_CHECK(gone.children.empty() && gone.present == 0 && node != kRoot);
  std::erase(nodes_.at(gone.parent).children, node);
  nodes_.erase(node);
}

void FairOrder::SetWeight(int node, int weight) {
  TERRACE_CHECK(weight > 0);
  nodes_.at(node).weight = weight;
}

void FairOrder::Wait(int leaf, IoClass io_class) {
  Node& node = nodes_.at(leaf);
  node.io_class = io_class;
  if (node.present == 0) AddPresent(leaf, +1);
  if (node.waiting == 0) AddWaiting(leaf, +1);
}

void FairOrder::Pause(int leaf) {
  if (Of(leaf).waiting > 0) AddWaiting(leaf, -1);
}

void FairOrder::Rest(int leaf) {
  Pause(leaf);
  if (Of(leaf).present > 0) AddPresent(leaf, -1);
}

void FairOrder::AddPresent(int leaf, int count) {
  for (int each = leaf; each != kNone; each = Of(each).parent) {
    Node& node = nodes_.at(each);
    if (node.present == 0 && each != kRoot) {
      node.start = std::max(node.start, Of(node.parent).now);
    }
    node.present += count;
    if (node.present > 0) continue;
    // At the end of a busy time all below it have had their shares: nobody is
    // remembered as ahead of those who come next.
    for (const int child : node.children) {
      node.now = std::max(node.now, Of(child).start);
    }
  }
}

void FairOrder::AddWaiting(int leaf, int count) {
  for (int each = leaf; each != kNone; each = Of(each).parent) {
    Node& node = nodes_.at(each);
    if (node.waiting == 0 && each != kRoot) {
      const double late = Share(kLateLimits * limit_bytes_, node.weight);
      node.start = std::max(node.start, Of(node.parent).now - late);
    }
    node.waiting += count;
  }
}

int FairOrder::WeightsOf(const Node& parent) const {
  int weights = 0;
  for (const int child : parent.children) {
    if (Of(child).present > 0) weights += Of(child).weight;
  }
  return weights;
}

FairOrder::Candidate FairOrder::BestOf(
    int node, absl::FunctionRef<bool(int)> may_go) const {
  const Node& here = Of(node);
  if (here.waiting == 0) return {};
  if (here.children.empty()) {
    return may_go(node) ? Candidate{node, here.io_class} : Candidate{};
  }
  const int weights = WeightsOf(here);
  Candidate best;
  double least = 0;
  for (const int child : here.children) {
    const Candidate candidate = BestOf(child, may_go);
    if (candidate.leaf == kNone) continue;
    // By the sum: it is the same for all, and counts only between classes.
    const double ahead =
        Share(LimitsAhead(candidate.io_class) * limit_bytes_, weights);
    const double key = Of(child).start - ahead;
    if (best.leaf != kNone && key >= least) continue;
    best = candidate;
    least = key;
  }
  return best;
}

int FairOrder::Next(absl::FunctionRef<bool(int)> may_go) const {
  return BestOf(kRoot, may_go).leaf;
}

void FairOrder::Serve(int leaf, int64_t bytes) {
  TERRACE_CHECK(Of(leaf).waiting > 0);
  for (int each = leaf; each != kRoot; each = Of(each).parent) {
    Node& node = nodes_.at(each);
    Node& above = nodes_.at(node.parent);
    double least = node.start;
    for (const int sibling : above.children) {
      if (Of(sibling).waiting > 0) least = std::min(least, Of(sibling).start);
    }
    above.now = std::max(above.now, least);
    node.start += Share(bytes, node.weight);
  }
  Pause(leaf);
}

void FairOrder::Refund(int leaf, int64_t bytes) {
  for (int each = leaf; each != kRoot; each = Of(each).parent) {
    Node& node = nodes_.at(each);
    node.start -= Share(bytes, node.weight);
  }
}

bool FairOrder::IsAhead(int node) const {
  return Of(node).start > Of(Of(node).parent).now;
}

}  // namespace terrace
