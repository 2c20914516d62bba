#include "libtorch/hook/life/saving_number.h"

#include <array>
#include <atomic>

namespace terrace {
namespace {

constinit std::array<std::atomic<bool>, SavingNumber::kMost> taken = {};

size_t TakeLeast() {
  size_t least = 0;
  while (least < taken.size() && taken[least].exchange(true)) ++least;
  return least;
}

}  // namespace

SavingNumber::SavingNumber() : value_(TakeLeast()) {}

SavingNumber::~SavingNumber() {
  if (value_ < taken.size()) taken[value_] = false;
}

}  // namespace terrace
