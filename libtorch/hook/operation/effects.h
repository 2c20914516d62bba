// What an operation does to its arguments: which it writes, whether it needs
// their bytes, and whether it goes on after it has returned. The one rule of
// all who watch operations; what they make of it is theirs.
//
// A schema says what is written where it can be trusted: of LibTorch's own
// operators, of one that carries any mark of an alias, and of one that is
// tagged pt2_compliant, as torch.library.custom_op does. LibTorch's own whose
// schema keeps a write to itself are known here: running statistics, and what
// process groups send and receive. Of all others (an inferred or conservative
// schema, a schema without a mark, a function that a program records itself)
// each argument may be written.
//
// A schema is read once a thread and kept by the address of its name; all are
// forgotten when any operator is registered or goes, since addresses are then
// used again.
//
// Thread-safe.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/record_function.h>

#include <cstddef>
#include <cstdint>

namespace terrace {

// Of one call; an input is counted as in RecordFunction::inputs().
class Effects {
 public:
  struct Values {
    uint64_t written = 0;  // bit i: argument i; from the 64th on all are
    bool needs_bytes = true;
    bool goes_on = false;
  };
  Effects() = default;
  // Arguments are the inputs from `first` on.
  Effects(Values values, size_t first) : values_(values), first_(first) {}

  // An interpreter's stack may have other values below a call's arguments.
  bool IsArgument(size_t input) const { return input >= first_; }
  bool Writes(size_t input) const {
    return IsArgument(input) &&
           (input - first_ >= 64 || (values_.written >> (input - first_) & 1));
  }
  // False: it makes only a view, or looks at a shape. Who reads the view's
  // bytes brings them.
  bool needs_bytes() const { return values_.needs_bytes; }
  // Its arguments are in use until a Work is done (collectives.h), or on a
  // stream of a process group's.
  bool goes_on() const { return values_.goes_on; }

 private:
  Values values_;
  size_t first_ = 0;
};

// Before the first of those below; again: nothing.
void ListenToRegistrations();

// An autograd node writes none of its inputs.
Effects EffectsOf(const at::RecordFunction& function);

}  // namespace terrace
