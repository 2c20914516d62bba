#include "optimizer/step/stepped_parameters.h"

#include <algorithm>
#include <utility>

namespace terrace {

void SteppedParameters::Begin(size_t parameters) {
  Clear();
  tells_ = true;
  chunks_left_.assign(parameters, -1);
  chunks_of_.assign(parameters, 0);
  for (const Chunk& chunk : chunks_.chunks()) {
    for (const Segment& segment : chunk.segments) {
      ++chunks_of_[static_cast<size_t>(segment.parameter)];
    }
  }
}

void SteppedParameters::Clear() {
  tells_ = false;
  stepped_.clear();
  updates_.clear();
}

int SteppedParameters::Expect(int parameter) {
  const auto index = static_cast<size_t>(parameter);
  chunks_left_[index] = chunks_of_[index];
  if (chunks_of_[index] == 0) stepped_.push_back(parameter);
  return chunks_of_[index];
}

void SteppedParameters::OnUpdate(int chunk,
                                 std::shared_ptr<ChunkUpdate> update) {
  if (tells_) updates_.push_back({chunk, std::move(update)});
}

void SteppedParameters::OnLost(int chunk) {
  updates_.erase(std::remove_if(updates_.begin(), updates_.end(),
                                [chunk](const RunningUpdate& running) {
                                  return running.chunk == chunk;
                                }),
                 updates_.end());
}

void SteppedParameters::Take(std::vector<int>* parameters) {
  parameters->insert(parameters->end(), stepped_.begin(), stepped_.end());
  stepped_.clear();
  const auto ended = [&](const RunningUpdate& running) {
    if (!running.update->has_ended()) return false;
    Count(running.chunk, parameters);
    return true;
  };
  updates_.erase(std::remove_if(updates_.begin(), updates_.end(), ended),
                 updates_.end());
}

void SteppedParameters::Count(int chunk, std::vector<int>* parameters) {
  for (const Segment& segment : chunks_.chunk(chunk).segments) {
    int& left = chunks_left_[static_cast<size_t>(segment.parameter)];
    if (left > 0 && --left == 0) parameters->push_back(segment.parameter);
  }
}

}  // namespace terrace
