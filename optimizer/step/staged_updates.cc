#include "optimizer/step/staged_updates.h"

#include <iterator>
#include <optional>
#include <utility>

namespace terrace {
namespace {

template <typename Poll>
std::vector<EndedCopies> TakeEnded(std::vector<StagedUpdate>& under_way,
                                   const Poll& poll) {
  std::vector<EndedCopies> ended;
  std::erase_if(under_way, [&](StagedUpdate& each) {
    std::optional<absl::Status> status = poll(*each.update->staged());
    if (!status.has_value()) return false;
    ended.push_back({std::move(each), *std::move(status)});
    return true;
  });
  return ended;
}

}  // namespace

std::vector<EndedCopies> StagedUpdates::TakeArrived() {
  return TakeEnded(arriving_,
                   [](StagedChunk& chunk) { return chunk.Arrived(); });
}

std::vector<EndedCopies> StagedUpdates::TakeReturned() {
  {
    MutexLock lock(mutex_);
    std::move(computed_.begin(), computed_.end(),
              std::back_inserter(returning_));
    computed_.clear();
  }
  return TakeEnded(returning_,
                   [](StagedChunk& chunk) { return chunk.Returned(); });
}

bool StagedUpdates::Keep(StagedUpdate staged) {
  if (!staged.update->staged()->Keep()) return false;
  kept_.push_back(std::move(staged));
  return true;
}

bool StagedUpdates::End(int chunk) {
  std::erase(under_way_, chunk);
  for (std::vector<int>& each : awaited_) std::erase(each, chunk);
  return std::erase_if(awaited_,
                       [](const auto& each) { return each.empty(); }) > 0;
}

bool StagedUpdates::HoldsBack() const {
  return std::any_of(
      awaited_.begin(), awaited_.end(), [this](const auto& chunks) {
        return std::all_of(chunks.begin(), chunks.end(),
                           [this](int chunk) { return IsUnderWay(chunk); });
      });
}

int StagedUpdates::ReturnAgain(absl::Span<const ParameterData> parameters) {
  const int count = kept();
  for (StagedUpdate& each : kept_) {
    each.update->staged()->ReturnAgain(parameters);
    returning_.push_back(std::move(each));
  }
  kept_.clear();
  return count;
}

}  // namespace terrace
