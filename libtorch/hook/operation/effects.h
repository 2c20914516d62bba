// Effects say what an operation does to its arguments: which it writes, whether
// it needs their bytes, and whether it goes on after it has returned. All who
// watch operations use this one rule; what they make of it is theirs.
//
// A schema says what is written where it can be trusted: the schema of
// LibTorch's own operators, of an operator that is registered as pure, of one
// that carries any mark of an alias, and of one that is tagged pt2_compliant,
// as torch.library.custom_op does. This file knows LibTorch's own operators
// whose schemas keep a write to themselves: running statistics, and what
// process groups send and receive. All other operations (an inferred or
// conservative schema, a schema without a mark, a function that a program
// records itself) may write each argument.
//
// Each thread reads a schema once and keeps it by the address of its name.
// Threads forget all schemas when any operator is registered or goes, since
// addresses are then used again.
//
// The functions are thread-safe.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/record_function.h>

#include <cstddef>
#include <cstdint>

namespace terrace {

// The effects of one call. An input is counted as in RecordFunction::inputs().
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
  // Returns false when the operation makes only a view, or looks at a shape.
  // Whoever reads the view's bytes brings them.
  bool needs_bytes() const { return values_.needs_bytes; }
  // Returns true when the arguments are in use until a Work is done
  // (collectives.h), or on a stream of a process group's.
  bool goes_on() const { return values_.goes_on; }

 private:
  Values values_;
  size_t first_ = 0;
};

// Must be called before the first EffectsOf; later calls do nothing.
void ListenToRegistrations();

// An autograd node writes none of its inputs.
Effects EffectsOf(const at::RecordFunction& function);

}  // namespace terrace
