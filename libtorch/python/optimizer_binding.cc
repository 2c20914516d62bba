#include "libtorch/python/optimizer_binding.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "libtorch/accelerator/guarded.h"
#include "libtorch/python/stats_json.h"
#include "libtorch/step/gathered/parameters.h"
#include "libtorch/tensor_check.h"

namespace terrace {
namespace {

using Late = OptimizerHome::Late;

// Each a group of its own, from the place `first` on: a step says which
// numbers are whose.
absl::StatusOr<std::vector<ParameterSpec>> DescribeTensors(
    const std::vector<at::Tensor>& parameters,
    const std::vector<std::string>& names, size_t first) {
  if (names.size() != parameters.size()) {
    return absl::InvalidArgumentError("a name for each parameter");
  }
  std::vector<ParameterSpec> specs;
  for (size_t i = 0; i < parameters.size(); ++i) {
    TERRACE_ASSIGN_OR_RETURN(
        ParameterSpec spec,
        DescribeTensor(parameters[i], absl::StrCat("'", names[i], "'"),
                       OffloadedTensors::kTaken));
    spec.name = names[i];
    spec.group = static_cast<int>(first + i);
    specs.push_back(std::move(spec));
  }
  return specs;
}

}  // namespace

Outcome OptimizerBinding::Check() { return ToOutcome(home_.CheckProcess()); }

Outcome OptimizerBinding::Open(
    const std::vector<at::Tensor>& parameters,
    const std::vector<std::string>& names, const std::string& options,
    const std::optional<c10::intrusive_ptr<OffloadBinding>>& model) {
  if (absl::Status status = home_.CheckProcess(); !status.ok()) {
    return ToOutcome(status);
  }
  auto read = ReadBindingOptions(options);
  if (!read.ok()) return ToOutcome(read.status());
  auto specs = DescribeTensors(parameters, names, 0);
  if (!specs.ok()) return ToOutcome(specs.status());
  std::shared_ptr<OffloadPlace> place;
  if (model.has_value()) {
    auto found = (*model)->Place();
    if (!found.ok()) return ToOutcome(found.status());
    place = *std::move(found);
  }
  return home_.Locked([&]() -> absl::Status {
    home_.gathered().Expect(parameters, 0);
    TERRACE_RETURN_IF_ERROR(
        home_.Open(*std::move(specs), *read, std::move(place)));
    closed_ = false;
    return absl::OkStatus();
  });
}

Outcome OptimizerBinding::Add(const std::vector<at::Tensor>& parameters,
                              const std::vector<std::string>& names) {
  return home_.Locked([&]() -> absl::Status {
    const size_t first = home_.specs().size();
    TERRACE_ASSIGN_OR_RETURN(const std::vector<ParameterSpec> specs,
                             DescribeTensors(parameters, names, first));
    TERRACE_RETURN_IF_ERROR(home_.Extend(specs));
    home_.gathered().Expect(parameters, first);
    return absl::OkStatus();
  });
}

Outcome OptimizerBinding::CheckApart(const std::vector<at::Tensor>& parameters,
                                     const std::vector<std::string>& names) {
  const auto name = [&names](size_t i) {
    return names.empty() ? absl::StrCat(i) : absl::StrCat("'", names[i], "'");
  };
  return home_.Locked([&]() -> absl::Status {
    if (!names.empty() && names.size() != parameters.size()) {
      return absl::InvalidArgumentError("a name for each parameter");
    }
    for (size_t i = 0; i < parameters.size(); ++i) {
      const std::string fault =
          StorageFault(parameters[i], OffloadedTensors::kTaken);
      if (fault.empty()) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("parameter ", name(i), " ", fault));
    }
    absl::Status status;
    status.Update(Guarded(c10::kCPU, [&] {
      if (const auto overlap = apart_.FindOverlap(parameters)) {
        status = OverlapError(name(overlap->first), name(overlap->second));
      }
    }));
    return status;
  });
}

std::tuple<Outcome, double> OptimizerBinding::WaitedSeconds() {
  double seconds = 0;
  Outcome outcome = home_.Locked([&] {
    home_.SettleLate(Late::kQuietly).IgnoreError();
    if (home_.optimizer() == nullptr) {
      return closed_ ? home_.CheckNotClosed() : absl::OkStatus();
    }
    seconds = absl::ToDoubleSeconds(home_.late()->waited());
    return absl::OkStatus();
  });
  return {std::move(outcome), seconds};
}

std::tuple<Outcome, std::string> OptimizerBinding::Stats() {
  std::string json;
  Outcome outcome = home_.Locked([&] {
    home_.SettleLate(Late::kQuietly).IgnoreError();
    OffloadedOptimizer* const optimizer = home_.optimizer();
    if (optimizer == nullptr) {
      json = StatsAsJson({}, {}, 0, {}, {}, absl::ZeroDuration());
      return closed_ ? home_.CheckNotClosed() : absl::OkStatus();
    }
    const absl::Span<const int64_t> steps = optimizer->parameter_steps();
    json = StatsAsJson(
        home_.runtime().GetStats(), optimizer->plan(),
        steps.empty() ? 0 : *std::max_element(steps.begin(), steps.end()),
        optimizer->last_report(), home_.total(), home_.late()->waited());
    return absl::OkStatus();
  });
  return {std::move(outcome), std::move(json)};
}

Outcome OptimizerBinding::Close() {
  if (!home_.CheckProcess().ok()) return ToOutcome(absl::OkStatus());
  return home_.Locked([&] {
    closed_ = true;
    const bool was_told = home_.late() != nullptr && home_.late()->is_told();
    absl::Status late = home_.SettleLate(Late::kTell);
    if (was_told) late = absl::OkStatus();
    const absl::Status closed = home_.Close();
    return late.ok() ? closed : late;
  });
}

}  // namespace terrace
