// Early return on an error; this Abseil has no macros for it.
//
//   TERRACE_RETURN_IF_ERROR(file.Flush());
//   TERRACE_ASSIGN_OR_RETURN(Extent extent, tier.Allocate(bytes));
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define TERRACE_RETURN_IF_ERROR(expression)                  \
  do {                                                       \
    absl::Status terrace_status_ = (expression);             \
    if (!terrace_status_.ok()) return terrace_status_;       \
  } while (false)

#define TERRACE_CONCAT_INNER_(a, b) a##b
#define TERRACE_CONCAT_(a, b) TERRACE_CONCAT_INNER_(a, b)
#define TERRACE_ASSIGN_OR_RETURN(target, expression) \
  TERRACE_ASSIGN_OR_RETURN_(TERRACE_CONCAT_(terrace_or_, __LINE__), target, \
                            expression)
#define TERRACE_ASSIGN_OR_RETURN_(temporary, target, expression) \
  auto temporary = (expression);                                 \
  if (!temporary.ok()) return std::move(temporary).status();     \
  target = *std::move(temporary)
