#include "libtorch/accelerator/listed_tensors.h"

#include <utility>

namespace terrace {

ListedTensors::Look::Look(ListedTensors& listed) : listed_(listed) {
  listed_.looks_.fetch_add(1);
  list_ = listed_.list_.load();
}

ListedTensors::Look::~Look() {
  if (listed_.looks_.fetch_sub(1) == 1) listed_.looks_.notify_all();
}

ListedTensors::~ListedTensors() { delete list_.load(); }

void ListedTensors::Set(List list) {
  const List* const before = list_.exchange(new List(std::move(list)));
  for (int32_t looks = looks_.load(); looks != 0; looks = looks_.load()) {
    looks_.wait(looks);
  }
  delete before;
}

}  // namespace terrace
