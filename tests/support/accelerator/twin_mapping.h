// Pages that are mapped twice: where tensors have their addresses, with what
// access the owner grants, and where the accelerator's threads reach the same
// pages. In a forked child the second mapping is absent.
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tests/support/accelerator/access_ledger.h"

namespace terrace {

class TwinMapping {
 public:
  static constexpr uintptr_t kPageBytes = 4096;
  enum class Grant : uint8_t { kNothing, kReading, kAll };

  // Pages take memory as they are written to. Throws std::system_error.
  TwinMapping(size_t bytes, Grant grant);
  ~TwinMapping();
  TwinMapping(const TwinMapping&) = delete;
  TwinMapping& operator=(const TwinMapping&) = delete;

  AddressRange range() const { return {begin_, begin_ + bytes_}; }
  bool Has(uintptr_t address) const {
    return address >= begin_ && address < begin_ + bytes_;
  }
  // Where the accelerator has the byte of that address.
  std::byte* Twin(uintptr_t address) const {
    return twin_ + (address - begin_);
  }
  // Of whole pages, to everybody who has the address.
  void Set(AddressRange pages, Grant grant);
  // The pages' memory goes back to the system, and their bytes become zero.
  void Discard(AddressRange pages);

 private:
  const size_t bytes_;
  int file_ = -1;
  uintptr_t begin_ = 0;
  std::byte* twin_ = nullptr;
};

}  // namespace terrace
