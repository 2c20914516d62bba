#include "libtorch/step/late/pending_storages.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/io_fault.h"

namespace terrace {

void PendingStorages::Add(int parameter, std::string name, const void* storage,
                          const void* gradient_storage,
                          std::shared_ptr<const void> gradient) {
  OrderedLock lock(mutex_);
  const size_t index = parameters_.size();
  parameters_.push_back({parameter, std::move(name), std::move(gradient)});
  by_place_[parameter] = index;
  storages_[storage].parameters.push_back(index);
  if (gradient_storage != nullptr) {
    storages_[gradient_storage].gradients.push_back(index);
  }
}

void PendingStorages::AddSent(int parameter, std::string name,
                              const void* storage) {
  OrderedLock lock(mutex_);
  by_place_[parameter] = parameters_.size();
  storages_[storage].sent.push_back(parameters_.size());
  parameters_.push_back({parameter, std::move(name), nullptr});
}

void PendingStorages::Await(absl::Span<const Operand> operands, Refuse refuse,
                            Waiter waiter) {
  Garbage garbage;  // ends after the lock
  OrderedLock lock(mutex_);
  garbage.swap(garbage_);
  for (size_t i = 0; i < operands.size(); ++i) {
    const auto found = storages_.find(operands[i].storage);
    if (found == storages_.end()) continue;
    Storage& storage = found->second;
    const bool is_written = operands[i].is_written;
    Note(storage);
    if (Missing(storage, is_written) == nullptr) continue;
    Want(storage.parameters);
    if (is_written) Want(storage.gradients);
    while (!ended_ && Missing(storage, is_written) != nullptr) {
      WaitForChange(absl::InfiniteDuration(), waiter);
    }
    const Parameter* const missing = Missing(storage, is_written);
    if (missing == nullptr || closed_) continue;
    Refused refused = refuse(
        i, Reworded(status_,
                    absl::StrCat("parameter '", missing->name,
                                 "' could not be updated: ", status_.message(),
                                 "; ", retry_, " tries again")));
    if (refused != nullptr) storage.refused = std::move(refused);
  }
}

bool PendingStorages::IsFree(Operand operand) const {
  OrderedLock lock(mutex_);
  const auto found = storages_.find(operand.storage);
  return closed_ || found == storages_.end() ||
         Missing(found->second, operand.is_written) == nullptr;
}

void PendingStorages::AwaitEnd() {
  Garbage garbage;
  OrderedLock lock(mutex_);
  while (!ended_) WaitForChange();
  garbage.swap(garbage_);
}

bool PendingStorages::AwaitEndUntil(absl::Time deadline) {
  Garbage garbage;
  OrderedLock lock(mutex_);
  garbage.swap(garbage_);
  while (!ended_) {
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) return false;
    WaitForChange(left);
  }
  return true;
}

void PendingStorages::WaitForChange(absl::Duration most, Waiter waiter) {
  const absl::Time begun = absl::Now();
  ++waiters_;
  changed_.WaitFor(mutex_, most);
  --waiters_;
  if (waiter == Waiter::kOfProgram) waited_ += absl::Now() - begun;
}

PendingStorages::Garbage PendingStorages::TakeGarbage() {
  OrderedLock lock(mutex_);
  return std::exchange(garbage_, {});
}

bool PendingStorages::has_ended() const {
  OrderedLock lock(mutex_);
  return ended_;
}

bool PendingStorages::is_done() const {
  OrderedLock lock(mutex_);
  return ended_ && (status_.ok() || closed_);
}

bool PendingStorages::has_waiters() const {
  OrderedLock lock(mutex_);
  return waiters_ > 0;
}

absl::Duration PendingStorages::waited() const {
  OrderedLock lock(mutex_);
  return waited_;
}

void PendingStorages::SetWake(std::function<void()> wake) {
  OrderedLock lock(mutex_);
  wake_ = std::move(wake);
}

void PendingStorages::TakeWanted(std::vector<int>* parameters) {
  OrderedLock lock(mutex_);
  parameters->insert(parameters->end(), wanted_.begin(), wanted_.end());
  wanted_.clear();
}

void PendingStorages::SetStepped(absl::Span<const int> parameters) {
  if (parameters.empty()) return;
  OrderedLock lock(mutex_);
  for (const int place : parameters) {
    const auto found = by_place_.find(place);
    if (found != by_place_.end()) Step(parameters_[found->second]);
  }
  changed_.SignalAll();
}

void PendingStorages::End(absl::Status status) {
  OrderedLock lock(mutex_);
  if (status.ok()) {
    for (Parameter& parameter : parameters_) Step(parameter);
  }
  status_ = std::move(status);
  ended_ = true;
  changed_.SignalAll();
}

void PendingStorages::BeginAgain() {
  OrderedLock lock(mutex_);
  ended_ = false;
  wanted_.clear();
  for (Parameter& parameter : parameters_) parameter.is_wanted = false;
}

void PendingStorages::GiveUp() {
  OrderedLock lock(mutex_);
  ended_ = closed_ = true;
  changed_.SignalAll();
}

std::vector<int> PendingStorages::order() const {
  OrderedLock lock(mutex_);
  return order_;
}

std::vector<PendingStorages::Refused> PendingStorages::TakeRefused() {
  OrderedLock lock(mutex_);
  std::vector<Refused> refused;
  for (auto& [key, storage] : storages_) {
    if (storage.refused == nullptr) continue;
    refused.push_back(std::exchange(storage.refused, nullptr));
  }
  return refused;
}

const PendingStorages::Parameter* PendingStorages::PendingOf(
    const std::vector<size_t>& parameters) const {
  for (const size_t index : parameters) {
    if (parameters_[index].is_pending) return &parameters_[index];
  }
  return nullptr;
}

const PendingStorages::Parameter* PendingStorages::Missing(
    const Storage& storage, bool is_written) const {
  const Parameter* missing = PendingOf(storage.parameters);
  if (missing != nullptr || !is_written) return missing;
  missing = PendingOf(storage.gradients);
  return missing != nullptr ? missing : PendingOf(storage.sent);
}

void PendingStorages::Note(Storage& storage) {
  if (std::exchange(storage.is_used, true)) return;
  for (const auto* const used : {&storage.parameters, &storage.sent}) {
    for (const size_t index : *used) {
      order_.push_back(parameters_[index].place);
    }
  }
}

void PendingStorages::Want(const std::vector<size_t>& parameters) {
  bool is_new = false;
  for (const size_t index : parameters) {
    Parameter& parameter = parameters_[index];
    if (!parameter.is_pending || parameter.is_wanted) continue;
    parameter.is_wanted = is_new = true;
    wanted_.push_back(parameter.place);
  }
  if (is_new && wake_) wake_();
}

void PendingStorages::Step(Parameter& parameter) {
  if (!std::exchange(parameter.is_pending, false)) return;
  if (parameter.gradient != nullptr) {
    garbage_.push_back(std::move(parameter.gradient));
  }
}

}  // namespace terrace
