// The number of a hook among those of its process that save tensors: the least
// that no other one has. It keeps apart what two hooks over one Runtime save,
// by name and by the number that a saved tensor has in its step. Where there
// are more than kMost hooks, those beyond share the last one.
//
// The class is thread-safe, and takes no lock that a fork could leave taken.
#pragma once

#include <cstddef>
#include <cstdint>

namespace terrace {

class SavingNumber {
 public:
  static constexpr size_t kMost = 512;
  // A step's tensors of one hook; those beyond have the next hook's numbers.
  static constexpr int64_t kOfAHook = int64_t{1} << 21;

  SavingNumber();
  ~SavingNumber();
  SavingNumber(const SavingNumber&) = delete;
  SavingNumber& operator=(const SavingNumber&) = delete;

  int64_t value() const { return static_cast<int64_t>(value_); }

 private:
  const size_t value_;
};

}  // namespace terrace
