#include "pinned_ring.h"

#include <cstring>
#include <utility>

namespace looseleaf::dirty_tracker {

PinnedSlots::PinnedSlots(Device& device, const RingLimits& limits) {
  for (unsigned i = 0; i < limits.slots; ++i) slots_.push_back(device.allocate_pinned(limits.slot_bytes));
}

Drain::Drain(const PinnedSlots& slots, unsigned threads) : slots_(slots) {
  for (std::size_t i = 0; i < slots.count(); ++i) free_.push_back(i);
  try {
    for (unsigned i = 0; i < threads; ++i) threads_.emplace_back(&Drain::work, this);
  } catch (...) {
    // No thread or no memory for one: those that run do all the work.
    if (threads_.empty()) throw;
  }
}

Drain::~Drain() { stop(); }

void Drain::stop() {
  {
    const std::lock_guard<std::mutex> locked(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
  for (auto& thread : threads_) thread.join();
  threads_.clear();
}

void Drain::throw_failure() const {
  if (failure_) std::rethrow_exception(failure_);
}

std::size_t Drain::take_slot() {
  std::unique_lock<std::mutex> locked(mutex_);
  changed_.wait(locked, [&] { return failure_ || !free_.empty(); });
  throw_failure();
  const std::size_t slot = free_.back();
  free_.pop_back();
  return slot;
}

void Drain::hand_in(std::size_t slot, std::unique_ptr<DeviceEvent> filled, std::vector<Landing> landings) {
  const auto batch = std::make_shared<Batch>();
  batch->slot = slot;
  batch->left = landings.size();
  batch->landings = std::move(landings);
  batch->filled = std::move(filled);
  {
    const std::lock_guard<std::mutex> locked(mutex_);
    for (std::size_t i = 0; i < batch->landings.size(); ++i) jobs_.push_back({batch, i});
  }
  changed_.notify_all();
}

void Drain::finish() {
  {
    std::unique_lock<std::mutex> locked(mutex_);
    changed_.wait(locked, [&] { return failure_ || free_.size() == slots_.count(); });
  }
  stop();
  throw_failure();
}

void Drain::work() {
  std::unique_lock<std::mutex> locked(mutex_);
  for (;;) {
    changed_.wait(locked, [&] { return closed_ || failure_ || !jobs_.empty(); });
    if (failure_ || jobs_.empty()) return;
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    locked.unlock();
    std::exception_ptr thrown;
    try {
      land(job);
    } catch (...) {
      thrown = std::current_exception();
    }
    locked.lock();
    if (thrown && !failure_) failure_ = thrown;
    if (--job.batch->left == 0) free_.push_back(job.batch->slot);
    changed_.notify_all();
  }
}

void Drain::land(const Job& job) {
  {
    const std::lock_guard<std::mutex> locked(job.batch->arrival);
    if (job.batch->filled) {
      job.batch->filled->wait();
      job.batch->filled.reset();
    }
  }
  const Landing& landing = job.batch->landings[job.landing];
  std::memcpy(landing.to, slots_.at(job.batch->slot) + landing.offset, landing.size);
}

}  // namespace looseleaf::dirty_tracker
