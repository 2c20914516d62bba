// A list of tensors that is looked at without a lock, as under the allocator's
// (relief_port.h), and replaced as a whole: what is taken off is looked at no
// more when Set returns.
//
//   listed.Set(all);
//   const ListedTensors::Look look(listed);
//   for (DeviceTensor* tensor : look.tensors()) ...
//
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

namespace terrace {

class DeviceTensor;

class ListedTensors {
 public:
  using List = std::vector<DeviceTensor*>;

  // All of it stays until its end. Waits for nothing.
  class Look {
   public:
    explicit Look(ListedTensors& listed);
    ~Look();
    Look(const Look&) = delete;
    Look& operator=(const Look&) = delete;
    const List& tensors() const { return *list_; }

   private:
    ListedTensors& listed_;
    const List* list_;
  };

  ListedTensors() = default;
  ~ListedTensors();
  ListedTensors(const ListedTensors&) = delete;
  ListedTensors& operator=(const ListedTensors&) = delete;

  // Waits for looks at the list before, which wait for nothing. Not within one.
  void Set(List list);

 private:
  // A look counts itself, then reads the list; Set replaces the list, then
  // reads the count: sequentially consistent, so that one of the two sees the
  // other.
  std::atomic<const List*> list_ = new List();
  std::atomic<int32_t> looks_ = 0;
};

}  // namespace terrace
