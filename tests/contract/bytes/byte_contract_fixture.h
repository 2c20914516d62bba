// The base of the contract tests of terrace/byte_queue.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "terrace/byte_queue.h"
#include "tests/contract/contract_fixture.h"

namespace terrace {

class ByteQueueContract : public ContractTest {
 protected:
  // A budget of that many tensors of a page, promised to one queue.
  void Open(int places) {
    Make(places);
    queue_ = OpenMore(places);
  }
  std::unique_ptr<ByteQueue> OpenMore(int places) {
    auto queue = runtime().OpenBytes(places * kPlace);
    EXPECT_TRUE(queue.ok()) << queue.status();
    return queue.ok() ? *std::move(queue) : nullptr;
  }
  uint64_t Push(std::vector<Want> wants, std::vector<uint64_t> in_use = {}) {
    return PushBy(wants, Soon(), in_use);
  }
  uint64_t PushBy(std::vector<Want> wants, Time deadline,
                  std::vector<uint64_t> in_use = {}) {
    const auto request = queue_->Push(wants, in_use, deadline);
    EXPECT_TRUE(request.ok()) << request.status();
    return request.value_or(0);
  }
  Awaited Await(uint64_t request) {
    auto news = queue_->Await(request, Soon());
    EXPECT_TRUE(news.ok()) << news.status();
    return news.ok() ? *std::move(news) : Awaited();
  }
  std::vector<uint64_t> AwaitRecalls(ByteQueue& queue) {
    auto recalls = queue.AwaitRecalls(Soon());
    EXPECT_TRUE(recalls.ok()) << recalls.status();
    return recalls.value_or(std::vector<uint64_t>());
  }
  // The request's pins. They end soon, so that recalls need no answer.
  std::vector<Pin> Take(uint64_t request) {
    Awaited news = Await(request);
    EXPECT_TRUE(news.pins.has_value() && news.pins->ok());
    if (!news.pins.has_value() || !news.pins->ok()) return {};
    return **std::move(news.pins);
  }
  Pin Have(TensorId tensor, Access access) {
    std::vector<Pin> pins = Take(Push({{tensor, access}}));
    return pins.empty() ? Pin() : std::move(pins.front());
  }
  TensorId Written(const std::string& name, int64_t size_bytes, uint8_t seed) {
    const TensorId id = world().Register(name, size_bytes);
    WritePattern(Have(id, Access::kOverwrite).data(), seed);
    return id;
  }
  // Whether it is not answered yet, once all has been heard.
  bool Waits(uint64_t request) {
    stats();
    return absl::IsDeadlineExceeded(
        queue_->Await(request, world().Now()).status());
  }

  std::unique_ptr<ByteQueue> queue_;
};

}  // namespace terrace
