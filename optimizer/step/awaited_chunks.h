// Which chunks the parameters still need that a thread waits for, so that it is
// told as soon as they are updated: copies of another chunk, once begun, may
// keep the customer's thread as long as a disk takes.
//
// Of chunks whose parameters are copied from and to a device, from the begin of
// these copies to their end. One thread at a time.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

namespace terrace {

class AwaitedChunks {
 public:
  void Clear() {
    awaited_.clear();
    under_way_.clear();
  }
  // Those of a parameter that are not updated yet.
  void Add(std::vector<int> chunks) {
    if (!chunks.empty()) awaited_.push_back(std::move(chunks));
  }

  void OnBegin(int chunk) { under_way_.push_back(chunk); }
  // It is updated and copied back, or was lost. Whether it was the last one
  // that a parameter needs.
  bool OnEnd(int chunk) {
    std::erase(under_way_, chunk);
    for (std::vector<int>& each : awaited_) std::erase(each, chunk);
    return std::erase_if(awaited_,
                         [](const auto& each) { return each.empty(); }) > 0;
  }

  bool IsUnderWay(int chunk) const {
    return std::find(under_way_.begin(), under_way_.end(), chunk) !=
           under_way_.end();
  }
  // All that some parameter still needs is under way: nothing else begins.
  bool holds_back() const {
    return std::any_of(
        awaited_.begin(), awaited_.end(), [this](const auto& chunks) {
          return std::all_of(chunks.begin(), chunks.end(),
                             [this](int chunk) { return IsUnderWay(chunk); });
        });
  }

 private:
  std::vector<std::vector<int>> awaited_;  // by parameter
  std::vector<int> under_way_;
};

}  // namespace terrace
