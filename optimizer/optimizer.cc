#include "terrace/optimizer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "optimizer/chunked_optimizer.h"
#include "optimizer/chunks/chunk_layout.h"
#include "optimizer/state/state_array.h"
#include "optimizer/step/staging.h"

namespace terrace {

absl::StatusOr<OptimizerPlan> OffloadedOptimizer::Plan(
    absl::Span<const ParameterSpec> parameters, const OptimizerOptions& options,
    int64_t host_budget_bytes) {
  TERRACE_ASSIGN_OR_RETURN(OptimizerPlan plan,
                           PlanSizes(parameters, options, host_budget_bytes));
  plan.staging_bytes = Staging::BytesFor(parameters, plan.chunk_bytes);
  return plan;
}

absl::StatusOr<std::unique_ptr<OffloadedOptimizer>> OffloadedOptimizer::Create(
    Runtime& runtime, std::vector<ParameterSpec> parameters,
    const OptimizerOptions& options) {
  auto optimizer = std::make_unique<ChunkedOptimizer>(runtime, options);
  TERRACE_RETURN_IF_ERROR(optimizer->AddParameters(std::move(parameters)));
  return optimizer;
}

absl::Status OffloadedOptimizer::ReadState(int parameter, StateKind kind,
                                           int64_t offset,
                                           absl::Span<float> out,
                                           Time deadline) {
  TERRACE_ASSIGN_OR_RETURN(const std::unique_ptr<StateReader> reader,
                           OpenStateReader());
  StateSpans spans;
  SpanOf(spans, kind) = out;
  return reader->Read(parameter, offset, spans, deadline);
}

absl::Status OffloadedOptimizer::ReadState(int parameter, StateKind kind,
                                           absl::Span<float> out,
                                           Time deadline) {
  const auto index = static_cast<size_t>(parameter);
  if (parameter >= 0 && index < parameters().size()) {
    const ParameterSpec& spec = parameters()[index];
    if (static_cast<int64_t>(out.size()) != spec.count) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter '", spec.name, "' has ", spec.count,
                       " elements, room is given for ", out.size()));
    }
  }
  return ReadState(parameter, kind, 0, out, deadline);
}

}  // namespace terrace
