// Which arguments an operation writes to, by its schema: the (a!) of in-place
// operations, of out= and of lists that are changed. A schema is looked at once
// a thread and kept by the address of its name; all are forgotten when any
// operator is registered or goes, since addresses are then used again.
//
// Thread-safe.
#pragma once

#include <ATen/record_function.h>

#include <cstddef>
#include <cstdint>

namespace terrace {

// Bit i: argument i; one that has no bit counts as written to.
class WrittenArguments {
 public:
  constexpr explicit WrittenArguments(uint64_t bits) : bits_(bits) {}
  bool Has(size_t argument) const {
    return argument >= 64 || (bits_ >> argument & 1) != 0;
  }

 private:
  uint64_t bits_;
};

// Before the first of those below; again: nothing.
void ListenToRegistrations();

// An autograd node writes to none of its inputs; of what has no schema (a
// function that a program records itself) each input may be written to.
WrittenArguments WrittenArgumentsOf(const at::RecordFunction& function);

// Whether it makes of its inputs only a new view, or looks at their shape: the
// bytes need not be here for it. By its name; a handful of operations.
bool NeedsNoBytes(const at::RecordFunction& function);

}  // namespace terrace
