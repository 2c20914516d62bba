// In which order those who wait for a link go: start-time fair queueing (Goyal,
// Vin and Cheng, SIGCOMM 1996) in bytes, over a tree: users by their weights,
// a user's jobs by theirs, a job's processes alike.
//
//   FairOrder order;
//   const int user = order.Add(FairOrder::kRoot, 3);
//   const int process = order.Add(order.Add(user, 1), 1);
//   order.Wait(process, IoClass::kDemand);
//   const int next = order.Next([](int leaf) { return true; });
//   order.Serve(next, bytes);  // and it waits no longer
//
// Each node counts the bytes that it was served, over its weight; the one that
// has the least goes first. Who was served is there until it rests: it comes
// back for what it missed meanwhile, as its thread may have been late, up to
// kLateLimits. Who has rested has saved up nothing.
//
// What is waited for goes before what is fetched ahead, and that before what is
// written back, whosever it is, as long as that does not cost the others their
// shares: a node whose best leaf waits for the more urgent class is looked at
// as if so many limits had been served less, to it and its siblings together
// (borrowed virtual time, Duda and Cheriton, SOSP 1999). Who has used that up
// goes in the order of shares.
//
// A value; nothing here knows the time. One thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/functional/function_ref.h"
#include "aio/io_transfer.h"

namespace terrace {

class FairOrder {
 public:
  static constexpr int kRoot = 0;
  static constexpr int kNone = -1;
  // By how many limits a class may be ahead of its share.
  static constexpr int64_t kAwaitedLimits = 16;
  static constexpr int64_t kPrefetchLimits = 8;
  // And by how many who is there may come back late.
  static constexpr int64_t kLateLimits = 8;

  FairOrder();

  // `weight` > 0. It begins as who has had its share until now.
  int Add(int parent, int weight);
  // Has no children, and does not wait.
  void Remove(int node);
  void SetWeight(int node, int weight);
  // Of a link's bytes in flight, > 0.
  void SetLimit(int64_t bytes) { limit_bytes_ = bytes; }

  // The leaf waits, with a piece of that class first.
  void Wait(int leaf, IoClass io_class);
  // It does not wait, and is there.
  void Pause(int leaf);
  void Rest(int leaf);
  bool empty() const { return Of(kRoot).waiting == 0; }

  // Of those who wait and may go; kNone: there is none.
  int Next(absl::FunctionRef<bool(int leaf)> may_go) const;
  // It waits no longer.
  void Serve(int leaf, int64_t bytes);
  // It was not served after all.
  void Refund(int leaf, int64_t bytes);

  // Has been served more than its siblings that wait: who forgets it forgives
  // it that.
  bool IsAhead(int node) const;
  bool HasChildren(int node) const { return !Of(node).children.empty(); }

 private:
  struct Node {
    int parent = kNone;
    int weight = 1;
    // Bytes over the weight, counted in the parent's time.
    double start = 0;
    double now = 0;  // the least start of the children that were served last
    // Leaves at or below it.
    int waiting = 0;
    int present = 0;
    IoClass io_class = IoClass::kDemand;  // of a leaf that waits
    std::vector<int> children;
  };
  // A leaf that would go, and as what.
  struct Candidate {
    int leaf = kNone;
    IoClass io_class = IoClass::kWriteBack;
  };

  const Node& Of(int node) const { return nodes_.at(node); }
  Candidate BestOf(int node, absl::FunctionRef<bool(int)> may_go) const;
  // Of the children that are there.
  int WeightsOf(const Node& parent) const;
  void AddPresent(int leaf, int count);
  void AddWaiting(int leaf, int count);

  std::map<int, Node> nodes_;
  int next_ = kRoot + 1;
  int64_t limit_bytes_ = 1;
};

}  // namespace terrace
