"""Pages of metrics as vLLM, vLLM-Omni and the bundled cache write them."""

VLLM = """\
# HELP python_gc_objects_collected_total Objects collected during gc
# TYPE python_gc_objects_collected_total counter
python_gc_objects_collected_total{generation="0"} 12961.0
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 2.0
vllm:num_requests_running{engine="1",model_name="tiny"} 1.0
# HELP vllm:prefix_cache_queries_total Prefix cache queries, in terms of number of queried tokens.
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} 100.0
vllm:prefix_cache_queries_total{engine="1",model_name="tiny"} 50.0
# HELP vllm:prefix_cache_queries_created Prefix cache queries, in terms of number of queried tokens.
# TYPE vllm:prefix_cache_queries_created gauge
vllm:prefix_cache_queries_created{engine="0",model_name="tiny"} 1.7644e+09
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 32.0
vllm:prefix_cache_hits_total{engine="1",model_name="tiny"} 16.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1"} 3.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf"} 4.0
vllm:time_to_first_token_seconds_count{engine="0"} 4.0
vllm:time_to_first_token_seconds_sum{engine="0"} 0.35
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="128",enable_prefix_caching="True",engine="0",num_gpu_blocks="64"} 1.0
vllm:cache_config_info{block_size="128",enable_prefix_caching="True",engine="1",num_gpu_blocks="72"} 1.0
"""

OMNI = """\
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{model_name="omni",replica="0",stage="0"} 10.0
vllm:prefix_cache_queries_total{model_name="omni",replica="1",stage="0"} 20.0
vllm:prefix_cache_queries_total{model_name="omni",replica="0",stage="1"} 700.0
# TYPE prefix_cache:written_bytes_total counter
prefix_cache:written_bytes_total{key="hidden"} 4096.0
prefix_cache:written_bytes_total{key="mid"} 1024.0
# TYPE prefix_cache:merge_seconds histogram
prefix_cache:merge_seconds_bucket{le="+Inf"} 4.0
prefix_cache:merge_seconds_count 4.0
prefix_cache:merge_seconds_sum 0.5
# TYPE prefix_cache:resident_bytes gauge
prefix_cache:resident_bytes{key="hidden"} 8192.0
"""
