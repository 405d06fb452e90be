"""Names of vLLM-Omni's deploy schema, as data.

Read from vLLM-Omni `READ_FROM`: `vllm_omni/config/stage_config.py`, `vllm_omni/config/omni_config.py` and
`vllm_omni/engine/arg_utils.py`, by the names given with each table. `tests/real/test_real_defaults.py` compares them
with an installed vLLM-Omni of that version.
"""

from __future__ import annotations


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


READ_FROM = "0.30.0"

RUNNERS = ("v1", "v2")
"""Values of `model_runner`."""

PLATFORMS = ("cuda", "npu", "rocm", "xpu", "musa")
"""Devices that vLLM-Omni 0.30.0 knows (`vllm_omni/platforms`)."""
DEVICES = (*PLATFORMS, "cpu")
"""And the one that `platforms/vllm_omni_cpu` adds."""
V1_PLATFORMS = frozenset({"npu", "xpu"})
"""Platforms on which vLLM-Omni refuses `model_runner: v2` (`_apply_platform_overrides`)."""

DECLARED = _names("""
    allgather_degree async_scheduling auxiliary_text_encoder boundary_ratio cache_backend cache_config
    cfg_parallel_size compilation_config config_format diffusers_call_kwargs diffusers_load_kwargs
    diffusion_attention_backend diffusion_attention_config diffusion_compile_dynamic
    diffusion_compile_granularity diffusion_kv_cache_dtype diffusion_kv_cache_skip_layers
    diffusion_kv_cache_skip_steps diffusion_load_format diffusion_offload_config diffusion_quantization_config
    disable_hybrid_kv_cache_manager dlo_host_registration_limit_gib dlo_resident_layers dlo_use_allgather
    enable_broadcast_weight_load enable_cache_dit_summary enable_cpu_offload enable_diffusion_pipeline_profiler
    enable_distributed_layerwise_offload enable_expert_parallel enable_flashinfer_autotune
    enable_layerwise_offload enable_multithread_weight_load enforce_eager fa_deterministic fastvideo_vsa_topk
    flow_shift gpu_memory_utilization host_weight_runtime_mode host_weight_runtime_root hsdp_replicate_size
    hsdp_shard_size load_format lora_backend lora_path lora_scale mamba_ssm_cache_dtype max_generated_image_size
    max_model_len max_num_batched_tokens max_num_seqs mm_processor_cache_gb model_class_name
    num_weight_load_threads profiler_config ring_degree sequence_parallel_size silence_ban_frames
    skip_mm_profiling step_execution subtalker_sampling_params tensor_parallel_size text_encoder_tp_size
    tokenizer_mode tts_max_instructions_length ulysses_a2a_permute ulysses_degree ulysses_mode use_hsdp
    vae_fast_path vae_parallel_mode vae_patch_parallel_size vae_use_slicing vae_use_tiling
    video_output_transport
""")
"""Stage fields that the schema declares (`_STAGE_DEPLOY_FIELDS`); any other key is an extra, applied after them."""

OWN_ATTRIBUTES = _names("""
    async_chunk default_pooling_params default_sampling_params devices engine_extras env input_connectors
    num_replicas output_connectors stage_id
""")
"""What a stage has beside them (`StageDeployConfig`): a platform's entry sets these too, else an extra."""

RESERVED = OWN_ATTRIBUTES | {"engine_args", "runtime"}
"""Keys of a stage that are no engine setting themselves (`_STAGE_RESERVED_KEYS`)."""

DEEP_MERGED = _names("""
    default_pooling_params default_sampling_params engine_args engine_extras subtalker_sampling_params
""")
"""Keys of a stage whose mappings merge recursively with the base's (`_DEEP_MERGE_KEYS`); others replace."""

PIPELINE_WIDE = (
    "trust_remote_code",
    "distributed_executor_backend",
    "dtype",
    "quantization",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "data_parallel_size",
    "pipeline_parallel_size",
    "active_stream_window",
    "custom_voice_dir",
)
"""Top-level keys that every stage takes where it says nothing itself (`PIPELINE_WIDE_ENGINE_FIELDS`)."""

STAGE_METADATA = _names("""
    final_output final_output_type is_comprehension
""")
"""Extras that are dropped: the pipeline decides them (`_LEGACY_STAGE_METADATA_EXTRA_FIELDS`)."""

COMMAND_LINE = _names("""
    active_stream_window additional_config all2all_backend allowed_local_media_path allowed_media_domains
    async_scheduling attention_backend attention_config block_size code_revision compilation_config
    config_format cp_kv_cache_interleave_size cpu_distributed_timeout_seconds custom_voice_dir
    data_parallel_address data_parallel_backend data_parallel_external_lb data_parallel_hybrid_lb
    data_parallel_rank data_parallel_rpc_port data_parallel_size data_parallel_size_local
    dbo_decode_token_threshold dbo_prefill_token_threshold dcp_comm_backend dcp_kv_cache_interleave_size
    dcp_q_replicate decode_context_parallel_size disable_chunked_mm_input disable_custom_all_reduce
    disable_hybrid_kv_cache_manager disable_nccl_for_dp_synchronization distributed_executor_backend
    distributed_timeout_seconds download_dir dp_sync_interval dtype elastic_ep_max_dp_size
    enable_batch_sharded_sampling enable_broadcast_weight_load enable_chunked_prefill enable_dbo
    enable_elastic_ep enable_ep_weight_filter enable_eplb enable_expert_parallel enable_fault_tolerance
    enable_flashinfer_autotune enable_mamba_fine_grained_prefix_cache enable_multithread_weight_load
    enable_prefix_caching enable_prompt_embeds enable_sleep_mode enforce_eager eplb_config
    expert_placement_strategy fault_tolerance_config final_output generation_config gpu_memory_utilization
    has_sampling_extra_args hf_config_path hf_overrides hf_token ignore_patterns interleave_mm_strings
    kv_cache_dtype kv_cache_dtype_skip_layers kv_cache_memory_bytes kv_offloading_backend kv_offloading_size
    kv_sharing_fast_prefill kv_transfer_config limit_mm_per_prompt load_format log_stats logits_processors
    logprobs_mode long_prefill_token_threshold mamba_block_size mamba_cache_dtype mamba_cache_mode
    mamba_ssm_cache_dtype master_addr master_port max_cudagraph_capture_size max_logprobs max_model_len
    max_num_batched_tokens max_num_queued_reqs max_num_queued_tokens max_num_scheduled_tokens max_num_seqs
    max_parallel_loading_workers media_io_kwargs mm_processor_cache_gb mm_processor_cache_type
    mm_processor_kwargs model_arch model_loader_extra_config moe_backend nnodes node_rank
    num_gpu_blocks_override num_weight_load_threads numa_bind numa_bind_cpus numa_bind_nodes omni_kv_config
    override_generation_config pipeline_parallel_size pooling_output_decoder prefill_context_parallel_size
    prefill_schedule_interval prefix_cache_retention_interval prefix_caching_hash_algo prefix_match_unit
    profiler_config pt_load_map_location quantization quantization_config ray_workers_use_nsight
    replayssm_buffer_len revision runner safetensors_load_strategy safetensors_prefetch_block_size
    safetensors_prefetch_num_threads scheduler_reserve_full_isl scheduling_policy seed served_model_name
    silence_ban_frames skip_mm_profiling skip_tokenizer_init stream_interval subtalker_sampling_params
    supports_native_mrv2_data_plane task_type tensor_parallel_size tokenizer_mode tokenizer_revision
    trust_remote_code ubatch_size use_replayssm use_tqdm_on_load use_v2_model_runner watermark worker_cls
    worker_extension_cls
""")
"""Arguments that every language-model stage takes (`_global_stage_cli_fields`, cut to those such a stage owns)."""

NEVER_PER_STAGE = _names("""
    async_chunk batch_timeout default_sampling_params deploy_config enable_ar_profiler enable_orch_monitor
    forced_aligner forced_aligner_config forced_aligner_device init_timeout log_file log_stats model num_gpus
    omni_replica_address parallel_config parallel_stage_init ray_address replica_id stage_id stage_init_timeout
    stage_overrides strategy_config tokenizer worker_backend
""")
"""Keys that `--stage-overrides` cannot set (`build_stage_runtime_overrides`)."""

OFF_COMMAND_LINE = _names("""
    codec_frame_rate_hz devices disable_autocast env log_level model model_subdir num_gpus num_replicas
    parallel_config tokenizer tokenizer_subdir
""")
"""Fields of a language-model stage that only a deploy file or `--stage-overrides` sets."""

DIFFUSION = _names("""
    VSA_sparsity cache_strategy custom_pipeline_args diffusers_pipeline_cls
    diffusion_kv_cache_skip_layer_indices diffusion_kv_cache_skip_step_indices diffusion_kv_max_rows_per_request
    diffusion_kv_mode diffusion_model_runner_cls dist_timeout enable_prompt_embed_cache
    enable_session_state_manager enable_stage_verification engine_backend extras force_cutlass_fp8 host
    mask_sp_padding mask_strategy_file_path max_cpu_loras max_multimodal_image_inputs moba_config_path
    model_config model_loaded model_paths nccl_port output_type override_transformer_cls_name pin_cpu_memory
    port prompt_embed_cache_size prompt_file_path quantization_config_is_auto_detected request_batch_max_wait_ms
    scheduler_port skip_time_steps stage_input_payload_keys stage_output_payload_keys streaming_output
    supports_mixed_reference_inputs supports_multimodal_inputs tf_model_config
""")
"""Further fields that only a diffusion stage takes."""

ENGINE = DECLARED | COMMAND_LINE | OFF_COMMAND_LINE | DIFFUSION
"""Every setting some stage takes (`_STAGE_ENGINE_FIELDS`); vLLM-Omni refuses others when it starts."""
