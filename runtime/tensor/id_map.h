// Values by ids that are given in order, each once, as those of tensors are:
// blocks of ids, of which one is gone when its last value is. A look costs as
// much as one into a vector and a small tree, and what has ended costs nothing,
// however many there were. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/container/btree_map.h"
#include "base/check.h"

namespace terrace {

template <typename Value>
class IdMap {
 public:
  // Of an id of 0 or more, which has none.
  void Put(int64_t id, Value value) {
    Block& block = BlockOf(id);
    std::optional<Value>& place = PlaceIn(block, id);
    TERRACE_CHECK(!place.has_value());
    place = std::move(value);
    ++block.values;
  }

  // Null: it has none. Valid until the id is erased.
  const Value* Find(int64_t id) const {
    if (id < 0) return nullptr;
    const auto found = blocks_.find(id / kIds);
    if (found == blocks_.end()) return nullptr;
    const std::optional<Value>& place = PlaceIn(*found->second, id);
    return place.has_value() ? &*place : nullptr;
  }

  // Nothing: it has none.
  void Erase(int64_t id) {
    if (Find(id) == nullptr) return;
    const auto found = blocks_.find(id / kIds);
    PlaceIn(*found->second, id).reset();
    if (--found->second->values > 0) return;
    if (newest_ == found->second.get()) newest_ = nullptr;
    blocks_.erase(found);
  }

  // In the order of the ids.
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    for (const auto& [first, block] : blocks_) {
      for (const std::optional<Value>& place : block->places) {
        if (place.has_value()) visit(*place);
      }
    }
  }

  // Of the ids from that one on, until `visit` returns false.
  template <typename Visit>
  void ForEachFrom(int64_t id, const Visit& visit) const {
    for (auto block = blocks_.lower_bound(id / kIds); block != blocks_.end();
         ++block) {
      for (int64_t i = 0; i < kIds; ++i) {
        const std::optional<Value>& place = PlaceIn(*block->second, i);
        if (block->first * kIds + i < id || !place.has_value()) continue;
        if (!visit(*place)) return;
      }
    }
  }

 private:
  static constexpr int64_t kIds = 128;

  struct Block {
    int64_t values = 0;
    std::array<std::optional<Value>, kIds> places;
  };

  // Most ids are of the newest block.
  Block& BlockOf(int64_t id) {
    if (newest_ == nullptr || newest_first_ != id / kIds) {
      std::unique_ptr<Block>& block = blocks_[id / kIds];
      if (block == nullptr) block = std::make_unique<Block>();
      newest_ = block.get();
      newest_first_ = id / kIds;
    }
    return *newest_;
  }
  static auto& PlaceIn(auto& block, int64_t id) {
    return block.places[static_cast<size_t>(id % kIds)];
  }

  absl::btree_map<int64_t, std::unique_ptr<Block>> blocks_;  // by id / kIds
  Block* newest_ = nullptr;                                  // null: gone
  int64_t newest_first_ = 0;
};

}  // namespace terrace
