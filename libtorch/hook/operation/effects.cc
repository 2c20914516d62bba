#include "libtorch/hook/operation/effects.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace terrace {
namespace {

constexpr uint64_t kAll = ~uint64_t{0};
// A thread keeps so many rules: programs may make up names of their own
// functions for each call.
constexpr size_t kMostKept = 4096;

// The count is the process's, as LibTorch's listeners are; threads compare
// their tables with it.
std::atomic<uint64_t> registration_count = 0;

class Registrations final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle&) override {
    ++registration_count;
  }
  void onOperatorDeregistered(const c10::OperatorHandle&) override {
    ++registration_count;
  }
};

// A Rule is what a schema says of every call.
struct Rule {
  Effects::Values values;
  size_t arguments = 0;  // 0: as many as there are
  uint64_t written_in_training = 0;
  size_t training = 0;  // the argument that says whether it trains
};

template <size_t size>
bool IsOneOf(const absl::string_view (&sorted)[size], absl::string_view name) {
  return absl::c_binary_search(sorted, name);
}

// Returns true for an operation that makes a view, changes no more than a
// tensor's shape, or makes a tensor of the same shape. detach is none of them:
// state_dict and save fetch by it. detach_ is, under both of its names:
// zero_grad() would read each gradient to drop it.
bool NeedsNoBytes(absl::string_view name) {
  static constexpr absl::string_view kNames[] = {"aten::_reshape_alias",
                                                 "aten::alias",
                                                 "aten::as_strided",
                                                 "aten::as_strided_",
                                                 "aten::chunk",
                                                 "aten::detach_",
                                                 "aten::diagonal",
                                                 "aten::empty_like",
                                                 "aten::expand",
                                                 "aten::expand_as",
                                                 "aten::full_like",
                                                 "aten::movedim",
                                                 "aten::narrow",
                                                 "aten::new_empty",
                                                 "aten::new_empty_strided",
                                                 "aten::new_full",
                                                 "aten::new_ones",
                                                 "aten::new_zeros",
                                                 "aten::ones_like",
                                                 "aten::permute",
                                                 "aten::rand_like",
                                                 "aten::randn_like",
                                                 "aten::requires_grad_",
                                                 "aten::retain_grad",
                                                 "aten::select",
                                                 "aten::slice",
                                                 "aten::split",
                                                 "aten::split_with_sizes",
                                                 "aten::squeeze",
                                                 "aten::squeeze_",
                                                 "aten::t",
                                                 "aten::t_",
                                                 "aten::transpose",
                                                 "aten::transpose_",
                                                 "aten::unbind",
                                                 "aten::unfold",
                                                 "aten::unsqueeze",
                                                 "aten::unsqueeze_",
                                                 "aten::view",
                                                 "aten::view_as",
                                                 "aten::zeros_like",
                                                 "detach_"};
  return IsOneOf(kNames, name);
}

// Returns true for a namespace of LibTorch's own, whose schemas are written
// beside their kernels. The schemas of c10d are as well, but have no marks.
bool IsOwn(absl::string_view space) {
  static constexpr absl::string_view kSpaces[] = {"_c10d_functional",
                                                  "_c10d_functional_autograd",
                                                  "_dtensor",
                                                  "_quantized",
                                                  "aten",
                                                  "debugprims",
                                                  "mkl",
                                                  "mkldnn",
                                                  "mkldnn_prepacked",
                                                  "onednn",
                                                  "prepacked",
                                                  "prims",
                                                  "profiler",
                                                  "quantization",
                                                  "quantized",
                                                  "quantized_decomposed",
                                                  "rngprims",
                                                  "sparse",
                                                  "static_runtime",
                                                  "symm_mem"};
  return IsOneOf(kSpaces, space);
}

absl::string_view SpaceOf(absl::string_view name) {
  const size_t end = name.find("::");
  return end == absl::string_view::npos ? "" : name.substr(0, end);
}

bool IsTaggedCompliant(const c10::FunctionSchema& schema) {
  const std::optional<c10::OperatorHandle> found =
      c10::Dispatcher::singleton().findOp(schema.operator_name());
  return found.has_value() && found->hasTag(at::Tag::pt2_compliant_tag);
}

bool IsTrusted(const c10::FunctionSchema& schema) {
  switch (schema.aliasAnalysis()) {
    case c10::AliasAnalysisKind::PURE_FUNCTION:
      return true;
    case c10::AliasAnalysisKind::CONSERVATIVE:
      return false;
    default:
      break;
  }
  const bool has_mark = absl::c_any_of(
      schema.arguments(),
      [](const c10::Argument& each) { return each.alias_info() != nullptr; });
  return has_mark || IsOwn(SpaceOf(schema.name())) || IsTaggedCompliant(schema);
}

template <typename Predicate>
uint64_t BitsOf(const c10::FunctionSchema& schema, const Predicate& is_one) {
  uint64_t bits = 0;
  for (size_t i = 0; i < schema.arguments().size() && i < 64; ++i) {
    if (is_one(schema.arguments()[i])) bits |= uint64_t{1} << i;
  }
  return bits;
}

bool IsMarkedWritten(const c10::Argument& argument) {
  const c10::AliasInfo* const alias = argument.alias_info();
  return alias != nullptr && alias->isWrite();
}

// Returns what a process group's operation writes: each argument that is not
// only sent, for a reduction may use memory of what it reduces, whoever gets
// the result.
uint64_t WrittenByCollective(const c10::FunctionSchema& schema) {
  const absl::string_view name = schema.name();
  if (name == "c10d::send" || name == "c10d::barrier" ||
      name == "c10d::monitored_barrier_") {
    return 0;
  }
  if (absl::StrContains(name, "reduce")) return kAll;
  return BitsOf(schema, [](const c10::Argument& argument) {
    return !absl::StartsWith(argument.name(), "input");
  });
}

// A kernel updates the statistics of a norm in place, though its schema says
// that they are only read. Where an argument says whether the call trains, the
// kernel does so in training alone.
void AddStatistics(const c10::FunctionSchema& schema, Rule* rule) {
  const absl::string_view name = schema.name();
  for (const absl::string_view reads :
       {"backward", "functional", "no_training", "no_update"}) {
    if (absl::StrContains(name, reads)) return;
  }
  rule->written_in_training = BitsOf(schema, [](const c10::Argument& argument) {
    return argument.name() == "running_mean" ||
           argument.name() == "running_var";
  });
  if (rule->written_in_training == 0) return;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const std::string& argument = schema.arguments()[i].name();
    if (argument == "training" || argument == "use_input_stats") {
      rule->training = i;
      return;
    }
  }
  rule->values.written |= rule->written_in_training;
}

Rule Read(const at::RecordFunction& function) {
  Rule rule;
  rule.values.needs_bytes = !NeedsNoBytes(function.name());
  const auto schema = function.operator_schema();
  if (!schema.has_value()) {
    // LibTorch records these by a bare name beside the operator's own;
    // record_param_comms has what a collective sends.
    static constexpr absl::string_view kReading[] = {"detach", "detach_",
                                                     "record_param_comms"};
    rule.values.written = IsOneOf(kReading, function.name()) ? 0 : kAll;
    return rule;
  }
  const absl::string_view space = SpaceOf(schema->name());
  rule.arguments = schema->arguments().size();
  rule.values.goes_on =
      space == "c10d" || absl::StartsWith(space, "_c10d_functional");
  if (!rule.values.needs_bytes) return rule;  // who writes the view marks it
  if (space == "c10d") {
    rule.values.written = WrittenByCollective(*schema);
  } else if (IsTrusted(*schema)) {
    rule.values.written = BitsOf(*schema, IsMarkedWritten);
    if (space == "aten") AddStatistics(*schema, &rule);
  } else {
    rule.values.written = kAll;
  }
  return rule;
}

Effects OfCall(const Rule& rule, const at::RecordFunction& function) {
  const c10::ArrayRef<const c10::IValue> inputs = function.inputs();
  const size_t first = rule.arguments > 0 && inputs.size() > rule.arguments
                           ? inputs.size() - rule.arguments
                           : 0;
  Effects::Values values = rule.values;
  if (rule.written_in_training != 0) {
    const size_t at = first + rule.training;
    const bool is_training =
        at >= inputs.size() || !inputs[at].isBool() || inputs[at].toBool();
    if (is_training) values.written |= rule.written_in_training;
  }
  return {values, first};
}

struct Kept {
  std::string name;  // the address may have another by now
  Rule rule;
};

struct KeptByThread {
  uint64_t registrations = 0;
  absl::flat_hash_map<const char*, Kept> by_name;
};

}  // namespace

void ListenToRegistrations() {
  // The listener lives as long as the process: operators come and go at its end
  // as well.
  static const auto& listening = *new c10::RegistrationHandleRAII(
      c10::Dispatcher::singleton().addRegistrationListener(
          std::make_unique<Registrations>()));
  static_cast<void>(listening);
}

Effects EffectsOf(const at::RecordFunction& function) {
  if (function.scope() != at::RecordScope::FUNCTION) return {};
  thread_local KeptByThread kept;
  const uint64_t registrations =
      registration_count.load(std::memory_order_acquire);
  if (kept.registrations != registrations || kept.by_name.size() > kMostKept) {
    kept.by_name.clear();
    kept.registrations = registrations;
  }
  const char* const name = function.name();
  const auto [found, is_new] = kept.by_name.try_emplace(name);
  Kept& one = found->second;
  if (is_new || std::strcmp(one.name.c_str(), name) != 0) {
    one.name = name;
    one.rule = Read(function);
  }
  return OfCall(one.rule, function);
}

}  // namespace terrace
