#include "libtorch/hook/storage_registry.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "libtorch/hook/life/storage_life.h"

namespace terrace {
namespace {

constexpr size_t kLeastPlaces = 64;

// An erased place has this key: looks go on past it.
const void* const kErased = reinterpret_cast<const void*>(1);

bool IsFree(const void* key) { return key == nullptr || key == kErased; }

}  // namespace

// A table has a power of two of places, of which at most a quarter are taken.
// Storages that come and go leave as many erased places again between them;
// even then a look for an address that is not there ends after two or three
// places.
class StorageRegistry::Table {
 public:
  explicit Table(size_t places) : places_(places) {}

  size_t places() const { return places_.size(); }
  Place& place(size_t i) { return places_[i & (places_.size() - 1)]; }
  const Place& place(size_t i) const {
    return places_[i & (places_.size() - 1)];
  }
  // Storages are about a hundred bytes apart, so that low bits say little.
  static size_t Start(const void* key) {
    const uint64_t mixed =
        reinterpret_cast<uintptr_t>(key) * uint64_t{0x9e3779b97f4a7c15};
    return static_cast<size_t>(mixed >> 32);
  }

 private:
  std::vector<Place> places_;
};

StorageRegistry::StorageRegistry() {
  tables_.push_back(std::make_unique<Table>(kLeastPlaces));
  table_.store(tables_.back().get(), std::memory_order_release);
}

StorageRegistry::~StorageRegistry() = default;

StorageLife* StorageRegistry::Find(const void* key) const {
  const size_t start = Table::Start(key);
  while (true) {
    const uint64_t puts = puts_.load(std::memory_order_acquire);
    const Table& table = *table_.load(std::memory_order_acquire);
    size_t i = start;
    const void* found = nullptr;
    do {
      found = table.place(i).key.load(std::memory_order_acquire);
      if (found == nullptr) return nullptr;
    } while (found != key && ++i < start + table.places());
    if (found != key) return nullptr;
    StorageLife* const storage =
        table.place(i).storage.load(std::memory_order_acquire);
    // The place may have become another storage's since its key was read.
    if (puts_.load(std::memory_order_relaxed) == puts) return storage;
  }
}

void StorageRegistry::ForEachInChild(
    absl::FunctionRef<void(StorageLife&)> visit) const {
  const Table& table = *table_.load(std::memory_order_acquire);
  for (size_t i = 0; i < table.places(); ++i) {
    if (IsFree(table.place(i).key.load(std::memory_order_acquire))) continue;
    visit(*table.place(i).storage.load(std::memory_order_relaxed));
  }
}

bool StorageRegistry::Insert(const void* key, StorageLife* storage) {
  OrderedLock lock(mutex_);
  if (Find(key) != nullptr) return false;
  if (4 * (size_ + 1) > tables_.back()->places()) Grow();
  Put(*tables_.back(), key, storage);
  ++size_;
  return true;
}

StorageRegistry::Kept StorageRegistry::Keep(
    std::shared_ptr<StorageLife> storage) {
  Kept ended;
  OrderedLock lock(mutex_);
  kept_.push_back(std::move(storage));
  // Not every call looks through what is kept, since a look costs as much as
  // there are kept.
  if (kept_.size() <= 2 * looked_at_kept_) return ended;
  const auto dead =
      std::partition(kept_.begin(), kept_.end(),
                     [](const auto& each) { return !each->expired(); });
  std::move(dead, kept_.end(), std::back_inserter(ended));
  kept_.erase(dead, kept_.end());
  looked_at_kept_ = kept_.size();
  return ended;
}

void StorageRegistry::Put(Table& table, const void* key, StorageLife* storage) {
  size_t i = Table::Start(key);
  while (!IsFree(table.place(i).key.load(std::memory_order_relaxed))) ++i;
  Place& place = table.place(i);
  // The count rises before the storage is set, so that a thread that sees the
  // new storage sees the new count as well.
  puts_.fetch_add(1, std::memory_order_release);
  place.storage.store(storage, std::memory_order_release);
  place.key.store(key, std::memory_order_release);  // seen with its storage
}

void StorageRegistry::Erase(const void* key) {
  OrderedLock lock(mutex_);
  Table& table = *tables_.back();
  const auto key_at = [&table](size_t i) {
    return table.place(i).key.load(std::memory_order_relaxed);
  };
  size_t i = Table::Start(key);
  const size_t end = i + table.places();
  while (i < end && key_at(i) != nullptr && key_at(i) != key) ++i;
  if (i == end || key_at(i) == nullptr) return;
  table.place(i).key.store(kErased, std::memory_order_release);
  --size_;
  // A look need not go on past these places where an empty place follows.
  if (key_at(i + 1) != nullptr) return;
  for (; key_at(i) == kErased; --i) {
    table.place(i).key.store(nullptr, std::memory_order_release);
  }
}

void StorageRegistry::Grow() {
  const Table& old = *tables_.back();
  auto table = std::make_unique<Table>(2 * old.places());
  for (size_t i = 0; i < old.places(); ++i) {
    const void* const key = old.place(i).key.load(std::memory_order_relaxed);
    if (IsFree(key)) continue;
    Put(*table, key, old.place(i).storage.load(std::memory_order_relaxed));
  }
  tables_.push_back(std::move(table));
  table_.store(tables_.back().get(), std::memory_order_release);
}

size_t StorageRegistry::size() const {
  OrderedLock lock(mutex_);
  return size_;
}

size_t StorageRegistry::places() const {
  OrderedLock lock(mutex_);
  size_t places = 0;
  for (const auto& table : tables_) places += table->places();
  return places;
}

}  // namespace terrace
