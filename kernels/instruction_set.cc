#include "kernels/instruction_set.h"

#include <atomic>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/cpu/kernel_table.h"

namespace terrace {
namespace {

std::vector<const internal::KernelTable*> AllKernels() {
  std::vector<const internal::KernelTable*> tables = internal::VectorKernels();
  tables.push_back(&internal::ScalarKernels());
  return tables;
}

// Process-wide, since a test forces what code far below it uses; the tables
// are constants, so no order but that of this pointer matters.
std::atomic<const internal::KernelTable*>& Chosen() {
  static std::atomic<const internal::KernelTable*> chosen =
      AllKernels().front();
  return chosen;
}

}  // namespace

const internal::KernelTable& internal::ChosenKernels() {
  return *Chosen().load(std::memory_order_relaxed);
}

std::string InstructionSetName() { return internal::ChosenKernels().name; }

std::vector<std::string> AvailableInstructionSets() {
  std::vector<std::string> names;
  for (const internal::KernelTable* table : AllKernels()) {
    names.emplace_back(table->name);
  }
  return names;
}

absl::Status ForceInstructionSet(absl::string_view name) {
  for (const internal::KernelTable* table : AllKernels()) {
    if (name.empty() || name == table->name) {
      Chosen().store(table, std::memory_order_relaxed);
      return absl::OkStatus();
    }
  }
  return absl::UnavailableError(
      absl::StrCat("no instruction set '", name, "' here, only ",
                   absl::StrJoin(AvailableInstructionSets(), ", ")));
}

}  // namespace terrace
