#include "libtorch/hook/placement/births.h"

#include <cstring>
#include <exception>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "libtorch/hook/operation/effects.h"
#include "libtorch/hook/placement/waiting_tensors.h"

namespace terrace {
namespace {

// Of LibTorch's dispatcher, whose names have a namespace, or a node of
// backward; a function of autograd that a program has made is a frame of
// others.
bool IsOperation(const at::RecordFunction& function) {
  return function.scope() == at::RecordScope::BACKWARD_FUNCTION ||
         std::strstr(function.name(), "::") != nullptr;
}

// Operations that make tensors without contents.
bool MakesEmpty(const char* name) {
  return absl::StartsWith(name, "aten::empty") ||
         absl::StartsWith(name, "aten::new_empty") ||
         absl::StartsWith(name, "aten::_empty");
}

// It makes a view, as a Parameter is one.
bool IsDetach(const char* name) {
  return std::strcmp(name, "aten::detach") == 0;
}

c10::StorageImpl* StorageIn(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

template <typename Visit>
void ForEachTensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (tensor.defined() && tensor.has_storage()) visit(tensor);
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      if (!element.isTensor()) break;
      ForEachTensor(element, visit);
    }
  }
}

}  // namespace

Births& Births::OfThisThread() {
  thread_local Births births;
  return births;
}

void Births::BeginWatching() {
  if (watchers_++ > 0) return;
  ListenToRegistrations();
  observer_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&OnStart, &OnEnd)
          .needsInputs(true)
          .needsOutputs(true)
          .scopes(
              {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

void Births::EndWatching() {
  if (--watchers_ > 0) return;
  at::removeCallback(*std::exchange(observer_, std::nullopt));
  depth_ = 0;
  taken_.clear();
  written_.clear();
  WaitingTensors::Get().ForgetAllOfThisThread();
}

Births::~Births() { WaitingTensors::Get().ForgetAllOfThisThread(); }

// What an observer throws would go no further. A tensor that is not adopted for
// it stays where it is.
std::unique_ptr<at::ObserverContext> Births::OnStart(
    const at::RecordFunction& function) {
  try {
    OfThisThread().Begin(function);
  } catch (const std::exception&) {
  }
  return nullptr;
}

void Births::OnEnd(const at::RecordFunction& function,
                   at::ObserverContext* /*context*/) {
  try {
    OfThisThread().End(function);
  } catch (const std::exception&) {
  }
}

void Births::Begin(const at::RecordFunction& function) {
  if (!IsOperation(function)) return;
  if (depth_++ > 0) return;
  taken_.clear();
  written_.clear();
  FindWritten(function);
}

void Births::End(const at::RecordFunction& function) {
  if (!IsOperation(function) || depth_ == 0 || --depth_ > 0) return;
  WaitingTensors& waiting = WaitingTensors::Get();
  for (const at::Tensor& tensor : std::exchange(written_, {})) {
    waiting.Adopt(tensor);
  }
  if (taken_.empty()) return;
  std::vector<at::Tensor> made;
  const bool are_empty = MakesEmpty(function.name());
  for (const c10::IValue& output : function.outputs()) {
    ForEachTensor(output, [&](const at::Tensor& tensor) {
      if (!WasTaken(tensor) || owner_ == nullptr) return;
      if (are_empty) return waiting.Add(tensor.storage(), owner_);
      if (!waiting.HasGivenAddress(StorageIn(tensor))) made.push_back(tensor);
    });
  }
  taken_.clear();
  const std::shared_ptr<NewbornOwner> owner = owner_;
  for (const at::Tensor& tensor : made) owner->Adopt(tensor);
}

bool Births::WasTaken(const at::Tensor& tensor) const {
  const void* const address =
      StorageIn(tensor)->_mutable_data_ptr_no_checks().get();
  return absl::c_linear_search(taken_, address);
}

void Births::FindWritten(const at::RecordFunction& function) {
  std::optional<Effects> effects;
  const c10::ArrayRef<const c10::IValue> inputs = function.inputs();
  for (size_t i = 0; i < inputs.size(); ++i) {
    ForEachTensor(inputs[i], [&](const at::Tensor& tensor) {
      if (!WaitingTensors::Get().Has(StorageIn(tensor))) return;
      if (!effects.has_value()) effects = EffectsOf(function);
      if (effects->Writes(i)) {
        written_.push_back(tensor);
      } else if (effects->needs_bytes() && !IsDetach(function.name())) {
        WaitingTensors::Get().Forget(StorageIn(tensor));
      }
    });
  }
}

}  // namespace terrace
